# SPDX-License-Identifier: Apache-2.0
"""Traces of real clusters, in samples with their columns, and what is said about files that are none."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from sim.cluster import PATTERNS, Job, TraceError, TraceFormat, read_trace

HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,u1,vc1,8,64,1,COMPLETED,2020-04-01 00:01:40,2020-04-01 00:01:45,2020-04-01 00:02:45,60,5
5,u1,vc1,16,64,2,FAILED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 01:00:00,3600,0
6,u2,vc1,0,4,1,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:00:10,2020-04-01 00:00:20,10,0
8,u2,vc1,1,4,1,CANCELLED,2020-04-01 00:03:00,,,0,9
"""
ACME = """job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
a,u1,2,16.0,64,Pretrain,COMPLETED,2023-05-17 11:00:00+00:00,2023-05-17 11:00:00+00:00,,3600.0,0.0,57600.0
b,u1,1,8.0,64,SFT,COMPLETED,2023-05-17 11:01:40+00:00,2023-05-17 11:01:45+00:00,,60.0,5.0,480.0
"""
SACCT = """JobID|Submit|ElapsedRaw|AllocTRES
5|2024-01-01T00:00:00|3600|billing=64,cpu=64,gres/gpu:a100=16,gres/gpu=16,mem=1T,node=2
5.batch|2024-01-01T00:00:00|3600|cpu=64,gres/gpu=8,mem=1T,node=1
6|2024-01-01T00:00:10|10|cpu=4,mem=1G,node=1
7|2024-01-01T00:01:40|60|cpu=64,gres/gpu=8,node=1
8|2024-01-01T00:02:00|0|
"""
# A site that tracks GPUs by type has no total; a job may have several types.
SACCT_TYPED = """JobID|Submit|ElapsedRaw|AllocTRES
5|2024-01-01T00:00:00|3600|billing=64,cpu=64,gres/gpu:a100=12,gres/gpu:h100=4,mem=1T,node=2
5.batch|2024-01-01T00:00:00|3600|cpu=64,gres/gpu:a100=8,mem=1T,node=1
7|2024-01-01T00:01:40|60|cpu=64,gres/gpu:a100=8,gres/gpumem=80G,node=1
"""
# Two tasks of a job, on 2 x 4 and 4 x 2 GPUs; then one on parts of GPUs, one without GPUs, two that never ran or ended.
PAI = """j1,ps,2.0,Terminated,1000.0,2000.0,600.0,29.3,400.0,V100
j1,worker,4.0,Terminated,1200.0,4600.0,600.0,29.3,200.0,V100
j2,tensorflow,8.0,Failed,1100.0,1160.0,600.0,29.3,50.0,MISC
j3,xComputeWorker,1.0,Terminated,900.0,950.0,600.0,29.3,,
j4,tensorflow,1.0,Waiting,,,600.0,29.3,100.0,MISC
j5,tensorflow,1.0,Running,1200.0,,600.0,29.3,100.0,MISC
"""
OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p2,12000,16384,8,1000,,LS,Running,100,170,110
p1,12000,16384,16,1000,V100M16|V100M32,Burstable,Succeeded,0,3612.0,12.0
p3,12000,16384,0,0,,LS,Running,20,1000,20
p4,12000,16384,1,460,,BE,Failed,30,1000,
"""
PHILLY = """[
{"jobid": "x", "submitted_time": "2017-10-03 00:01:40", "attempts": [
  {"start_time": "2017-10-03 00:01:45", "end_time": "2017-10-03 00:02:15", "detail": [{"ip": "m1", "gpus": ["gpu0"]}]},
  {"start_time": "2017-10-03 00:02:30", "end_time": "2017-10-03 00:02:45",
   "detail": [{"ip": "m1", "gpus": ["g0","g1","g2","g3"]}, {"ip": "m2", "gpus": ["g0","g1","g2","g3"]}]}]},
{"jobid": "y", "submitted_time": "2017-10-03 00:00:00", "attempts": [
  {"start_time": "2017-10-03 00:00:00", "end_time": "2017-10-03 01:00:00",
   "detail": [{"ip": "m1", "gpus": ["a","b","c","d","e","f","g","h"]},
              {"ip": "m2", "gpus": ["a","b","c","d","e","f","g","h"]}]},
  {"start_time": null, "end_time": "None", "detail": []}]},
{"jobid": "z", "submitted_time": "2017-10-03 00:00:30", "attempts": []}
]"""


def read(folder: Path, text: str, trace_format: TraceFormat, most: int | None = None) -> list[Job]:
    path = folder / "trace"
    path.write_text(text)
    return read_trace(path, trace_format, most=most)


@pytest.mark.parametrize(
    ("text", "trace_format", "names"),
    [
        (HELIOS, "helios", "57"),
        (ACME, "helios", "ab"),
        (SACCT, "sacct", "57"),
        (SACCT_TYPED, "sacct", "57"),
        (PHILLY, "philly", "yx"),
        (PAI, "alibaba_2020", ("j1", "j2")),
        (OPENB, "alibaba_2023", ("p1", "p2")),
    ],
)
def test_each_format_gives_sizes_arrivals_and_durations(
    tmp_path: Path, text: str, trace_format: TraceFormat, names: Sequence[str]
) -> None:
    """Each sample has the same two jobs with GPUs, out of order, and others without GPUs or that never ran."""
    jobs = read(tmp_path, text, trace_format)
    assert [(job.name, job.arrival_s, job.gpus, job.run_s) for job in jobs] == [
        (names[0], 0.0, 16, 3600.0),
        (names[1], 100.0, 8, 60.0),
    ]
    assert all(job.pattern in PATTERNS and 0 < job.communication < 1 for job in jobs)
    assert [job.deadline_s for job in jobs] == [7200.0, 220.0]
    assert read(tmp_path, text, trace_format, most=1) == jobs[:1]


def test_a_job_on_a_part_of_a_gpu_takes_a_whole_one(tmp_path: Path) -> None:
    jobs = read(tmp_path, HELIOS.replace(",8,64,", ",0.5,64,"), "helios")
    assert [(job.name, job.gpus) for job in jobs] == [("5", 16), ("7", 1)]


@pytest.mark.parametrize(
    ("text", "trace_format", "sentence"),
    [
        ("a,b\n1,2\n", "helios", "trace:1: has no column job_id; the format needs job_id, gpu_num"),
        (HELIOS.replace(",16,", ",many,"), "helios", "trace:3: gpu_num must be a number, 0 or more, not 'many'"),
        (HELIOS.replace("2020-04-01 00:00:00,2020", "soon,2020", 1), "helios", "trace:3: submit_time must be a date"),
        (HELIOS + "9,u1\n", "helios", "trace:6: has fewer fields than the first line"),
        (HELIOS.replace(",3600,", ",nan,"), "helios", "trace:3: duration must be a number, 0 or more, not 'nan'"),
        (SACCT.replace("|3600|billing", "|-3600|billing"), "sacct", "trace:2: ElapsedRaw must be a number"),
        (SACCT.splitlines()[0], "sacct", "no job in it had GPUs and ran"),
        (PAI.replace("1200.0,4600.0", "1200.0,late"), "alibaba_2020", "trace:2: end_time must be a number, 0 or more"),
        (PAI.replace("4600.0", "1e99"), "alibaba_2020", "trace:2: end_time must be a time in seconds, not '1e99'"),
        (PAI + "j6,worker\n", "alibaba_2020", "trace:7: has fewer fields than 10"),
        (OPENB.replace("8,1000,,LS", "-8,1000,,LS"), "alibaba_2023", "trace:2: num_gpu must be a number, 0 or more"),
        (OPENB.replace("name,", "pod,"), "alibaba_2023", "trace:1: has no column name; the format needs name, num_gpu"),
        ("{", "philly", "trace: is not a JSON file"),
        ("{}", "philly", "trace: is not a list of jobs"),
        ('[{"jobid": 1}]', "philly", "trace: entry 0: has no jobid, submitted_time or attempts"),
        (PHILLY.replace("2017-10-03 00:00:00", "now", 1), "philly", "trace: entry 1: submitted_time must be a date"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_line(
    tmp_path: Path, text: str, trace_format: TraceFormat, sentence: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, text, trace_format)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("trace_format", "mebibytes"), [("helios", 256), ("sacct", 256), ("philly", 64)])
def test_a_file_without_end_is_refused(tmp_path: Path, trace_format: TraceFormat, mebibytes: int) -> None:
    file = tmp_path / "trace"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(TraceError, match=f"is larger than {mebibytes} MiB; give a part of the trace"):
        read_trace(file, trace_format)
