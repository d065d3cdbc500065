# SPDX-License-Identifier: Apache-2.0
"""The closed form against published rates of training: the page that `python -m testbed.training.published` prints.

Nothing is fitted to a row. Where a source leaves out how many sequences a microbatch has, the fastest choice that fits
into memory counts, because authors tune it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from textwrap import fill
from typing import NamedTuple, Protocol, TypeVar

from testbed.training.closed_form import estimate, memory_bytes
from testbed.training.clusters import DGX_A100, DGX_H100, Cluster
from testbed.training.hardware import H100_CUDNN, Work
from testbed.training.korthikanti import MEASURED
from testbed.training.latent_mixture import DEEPSEEK_V3, H800_NODES, Kernels, iteration_s, kernels, passes
from testbed.training.operators import HALF
from testbed.training.strategies import Strategy
from testbed.training.transformer import LLAMA_3_8B, LLAMA_3_70B, LLAMA_3_405B, Transformer, gpt


class Row(Protocol):
    """A published time beside our estimate."""

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Name, GPUs, batch, microbatch, chunks."""

    @property
    def seconds(self) -> float:
        """The published time."""

    @property
    def estimated_s(self) -> float:
        """Our estimate."""

    @property
    def missing(self) -> float:
        """The part by which computing would have to take longer for the published time."""


def deviation(row: Row) -> float:
    """The estimate relative to the published time, minus 1."""
    return row.estimated_s / row.seconds - 1


@dataclass(frozen=True)
class Published:
    """One published iteration, and how the model was split and scheduled in it."""

    model: Transformer
    strategy: Strategy
    cluster: Cluster
    seconds: float
    """The published time of an iteration."""
    sizes: tuple[int, ...] = (1,)
    """Sequences of a microbatch, as multiples of the strategy's; several where the source leaves them out."""

    @cached_property
    def chosen(self) -> Strategy:
        """The fastest strategy of those that the source leaves open. Raises ValueError where none fits into memory."""
        limit = self.cluster.gpu.memory_bytes
        fitting = [strategy for strategy in self._open() if memory_bytes(self.model, strategy) <= limit]
        if not fitting:
            raise ValueError(f"{self.model.name} on {self.strategy.gpus} GPUs does not fit into their memory")
        return min(fitting, key=lambda strategy: estimate(self.model, strategy, self.cluster).iteration_s)

    @property
    def estimated_s(self) -> float:
        """The iteration in closed form, in seconds."""
        return estimate(self.model, self.chosen, self.cluster).iteration_s

    @property
    def missing(self) -> float:
        """The part by which computing would have to take longer for the published time, if nothing else did."""
        found = estimate(self.model, self.chosen, self.cluster)
        return (self.seconds - found.iteration_s) / (found.compute_s + found.recompute_s)

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Name, GPUs, batch, microbatch, chunks."""
        run = self.chosen
        return self.model.name, f"{run.gpus:,}", f"{run.batch:,}", str(run.microbatch), str(run.interleave)

    def _open(self) -> Iterator[Strategy]:
        whole = self.strategy
        for size in self.sizes:
            batches, rest = divmod(whole.microbatches, size)
            if rest or (whole.interleave > 1 and batches % whole.pipeline):
                continue
            yield replace(whole, microbatches=batches, microbatch=size * whole.microbatch)


@dataclass(frozen=True)
class PublishedMixture:
    """A published time of DeepSeek-V3."""

    what: str
    strategy: Strategy
    seconds: float
    estimated_s: float

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Name, GPUs, batch, microbatch, chunks."""
        run = self.strategy
        return self.what, f"{run.gpus:,}", f"{run.batch:,}", str(run.microbatch), "2"

    @property
    def missing(self) -> float:
        """The part by which computing, which hides what is sent, would have to take longer for the published time."""
        return self.seconds / self.estimated_s - 1


class Source(NamedTuple):
    """The rows of one publication."""

    title: str
    where: str
    """Its title, the table, what that leaves out, and what the model has not."""
    within_before: int | None
    """Rows that were within 10 % before products had measured rates and overlapped with reading their factors, before
    collectives took multiprocessors from them, and before the rows of 2021 exchanged gradients after the backward pass;
    None where there were no rows."""
    rows: tuple[Row, ...]


def _megatron() -> Iterator[Published]:
    # Billion parameters, heads, hidden, layers, tensor, pipeline, GPUs, batch, teraFLOP/s of a GPU: Table 1. Microbatch
    # and chunks: `run_table_1.sh`, with layers of a chunk there.
    table_1 = (
        ("1.7", 24, 2304, 24, 1, 1, 32, 512, 137, 16, 1),
        ("3.6", 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1),
        ("7.5", 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1),
        ("18.4", 48, 6144, 40, 8, 1, 256, 1024, 135, 8, 1),
        ("39.1", 64, 8192, 48, 8, 2, 512, 1536, 138, 4, 1),
        ("76.1", 80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 3),
        ("145.6", 96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 2),
        ("310.1", 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 2),
        ("529.6", 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3),
        ("1008.0", 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 1),
    )
    for billions, heads, hidden, layers, tensor, pipeline, gpus, batch, teraflops, size, chunks in table_1:
        model = gpt(f"GPT {billions}B", layers, hidden, heads)
        copies = gpus // tensor // pipeline
        strategy = Strategy(
            tensor,
            pipeline,
            copies,
            batch // copies // size,
            size,
            chunks,
            recomputation="full",
            overlap_gradients=pipeline == 1,
            overlap_inputs=False,
            half_gradients=True,
        )
        # Equation 3 counts the forward pass that is computed again.
        seconds = 4 / 3 * model.flops(batch) / (gpus * teraflops * 1e12)
        yield Published(model, strategy, DGX_A100, seconds)


def _megascale() -> Iterator[Published]:
    model = replace(gpt("GPT 175B", 96, 12288, 128), vocabulary=64_000, parallel=True)
    table_2 = (  # batch, GPUs, seconds
        (768, 256, 32.0),
        (768, 512, 16.5),
        (768, 768, 11.5),
        (768, 1024, 8.9),
        (6144, 3072, 23.66),
        (6144, 6144, 12.21),
        (6144, 8192, 9.56),
        (6144, 12288, 6.34),
    )
    for batch, gpus, seconds in table_2:
        copies = gpus // 64
        run = Strategy(8, 8, copies, batch // copies, interleave=6, sequence=True, zero=1, flash=True)
        run = replace(run, overlap_transfers=True, overlap_tensor=True)
        yield Published(model, run, DGX_A100, seconds, sizes=(1, 2))


def _masked_part(row: Published) -> float:
    """The part of the counted operations that causal attention leaves out: half of the scores."""
    model = row.model
    return 6 * model.sequence**2 * model.hidden * model.layers / model.flops(1)


def _masked(row: Published) -> str:
    return f"{100 * _masked_part(row):.0f} %"


def _llama() -> Iterator[Published]:
    table_4 = ((8192, 1, 2048, 430), (16_384, 1, 2048, 400), (16_384, 16, 128, 380))  # GPUs, context, batch, teraFLOP/s
    for gpus, context, batch, teraflops in table_4:
        copies, long = gpus // (128 * context), 2048 // batch
        model = replace(LLAMA_3_405B, apart=True)
        if long > 1:
            sequence = long * model.sequence
            model = replace(model, name=f"{model.name}, sequences of {sequence:,}", sequence=sequence)
        # 126 layers are split like 128, and the first and the last chunk have none: chunks of one layer.
        run = Strategy(8, 16, copies, batch // copies, interleave=8, sequence=True, zero=2, flash=True, context=context)
        run = replace(run, overlap_transfers=True, overlap_inputs=False)
        yield Published(model, run, DGX_H100, model.flops(batch) / (gpus * teraflops * 1e12))


_LLAMA = tuple(_llama())


def _nvidia() -> Iterator[Published]:
    cluster = replace(DGX_H100, gpu=H100_CUDNN)
    alone = Strategy(data=8, microbatches=16, zero=3, flash=True, fp8=True)
    several = replace(alone, sequence=True, microbatches=64, zero=1, overlap_tensor=True, overlap_transfers=True)
    runs = (  # tokens per second of a GPU
        (LLAMA_3_8B, alone, 14_451),
        (LLAMA_3_70B, replace(several, tensor=4, pipeline=8, data=2, interleave=5), 1602),
        (LLAMA_3_405B, replace(several, tensor=8, pipeline=8, data=8, interleave=8, context=2), 292),
        (LLAMA_3_70B, replace(several, tensor=4, pipeline=8, data=2, interleave=5, microbatches=128), 1621),
        (LLAMA_3_405B, replace(several, tensor=8, pipeline=8, data=8, interleave=8, context=2, microbatches=192), 311),
    )
    for model, run, tokens in runs:
        yield Published(model, run, cluster, run.batch * model.sequence / (tokens * run.gpus))


def _deepseek() -> Iterator[PublishedMixture]:
    run = Strategy(pipeline=16, data=128, microbatches=120, expert=64, zero=1)
    tokens = run.batch * DEEPSEEK_V3.sequence
    whole_s = iteration_s(DEEPSEEK_V3, run, H800_NODES)
    yield PublishedMixture("DeepSeek-V3", run, tokens * 180_000 * 3600 / 1e12 / run.gpus, whole_s)
    _, mixed, _ = passes(DEEPSEEK_V3, H800_NODES, run.expert)
    yield PublishedMixture(
        "4 layers of it, forward and backward", replace(run, microbatches=1), _PROFILE_MS / 1e3, (mixed * 4).both_s
    )


_PROFILE_MS, _PROFILED_MS = 129.0, Kernels(products=75, attention=22, memory=33)
"""The profile of four layers that DeepSeek published, whole and by kernels of streams 7 and 23: those with `flash` in
their name are attention, those with `gemm` products, and memory limits the others."""
_BALANCED = 1.23
"""How many times as fast iterations are on average when documents are balanced over microbatches and over GPUs that
share a sequence: Z. Wang et al., "WLB-LLM", OSDI 2025, arXiv:2503.17924, abstract."""
_DEEPSEEK = tuple(_deepseek())
_KERNELS_MS = Kernels(*(4e3 * seconds for seconds in kernels(DEEPSEEK_V3, H800_NODES, _DEEPSEEK[1].strategy.expert)))
"""Ours of the same four layers."""


def _later(earlier: int, later: int, *, published: bool) -> float:
    """By how many per cent a row of 2021 takes longer than one of 2022 in which a copy does the same."""
    rows = _MEGATRON[earlier], _KORTHIKANTI[later]
    early, late = (row.seconds if published else row.estimated_s for row in rows)
    return 100 * (early / late - 1)


def _more(few: int, many: int, *, published: bool) -> float:
    """By how many per cent a sequence of a copy takes longer on more GPUs in MegaScale's rows."""
    each = [
        (row.seconds if published else row.estimated_s) / (row.strategy.batch / row.strategy.copies)
        for row in (_MEGASCALE[few], _MEGASCALE[many])
    ]
    return 100 * (each[1] / each[0] - 1)


def _zero_2() -> float:
    """By how many per cent MegaScale's row of 1,024 GPUs would be too long with ZeRO's stage 2."""
    row = _MEGASCALE[3]
    return 100 * deviation(replace(row, strategy=replace(row.strategy, zero=2)))


def _as_megatron(place: int, *, together: bool = False, hidden: bool = False) -> str:
    """The deviation of a row of Llama 3's if its products were as in Megatron-LM, or what tensor groups send was."""
    row = _LLAMA[place]
    model = replace(row.model, apart=row.model.apart and not together)
    run = replace(row.strategy, overlap_inputs=row.strategy.overlap_inputs or hidden)
    return _percent(deviation(replace(row, model=model, strategy=run)))


def _batch_gain(size: int) -> float:
    """By how many per cent a sequence is faster in batches of 768 than in those of 256 on MegaScale's 256 GPUs, if
    microbatches have so many sequences."""
    row = _MEGASCALE[0]
    few, many = (
        replace(row, strategy=replace(row.strategy, microbatches=batch // 4), sizes=(size,)).estimated_s / batch
        for batch in (256, 768)
    )
    return 100 * (few / many - 1)


def _with_four(place: int) -> Published:
    """A row of MegaScale's with four sequences in a microbatch."""
    return replace(_MEGASCALE[place], sizes=(4,))


def _rotary() -> float:
    """By how many per cent of computing rotary positions would lengthen Llama 3's layers: queries and keys are read and
    written, forward and backward."""
    row = _LLAMA[0]
    model, run = row.model, row.chosen
    size = HALF * model.sequence * model.hidden / run.tensor * (1 + model.key_share)
    moves_s = 2 * row.cluster.gpu.seconds(Work(bytes=2 * size)) * model.layers / run.pipeline
    found = estimate(model, run, row.cluster)
    return 100 * moves_s * run.microbatches / (found.compute_s + found.recompute_s)


_MEGATRON = tuple(_megatron())
_KORTHIKANTI = tuple(Published(row.model, row.strategy, DGX_A100, row.measured_s) for row in MEASURED)
_BOTH = (8, 4), (9, 6)
"""Rows of both in which a copy does the same: 280 sequences through 530B on 280 GPUs, and 512 through 1T on 512."""
_MEGASCALE = tuple(_megascale())


class Reason(NamedTuple):
    """What is known about a row that is outside 10 %."""

    row: Row
    known: str


def reasons() -> Iterator[Reason]:
    """The rows outside 10 %, in the order of the page, each with what its source and other rows say about it."""
    more = min((1 + _later(*pair, published=True) / 100) / (1 + _later(*pair, published=False) / 100) for pair in _BOTH)
    for early in _outside(_MEGATRON):
        rest = more * early.estimated_s / early.seconds - 1
        known = f"the code of 2021 takes another {100 * (more - 1):.0f} % longer than that of 2022; with these"
        yield Reason(early, f"not known: {known} {_percent(rest)}")
    for llama in _outside(_LLAMA):
        balanced = llama.estimated_s / (llama.seconds / _BALANCED) - 1
        known = (
            "model: documents differ in length, and scores between them are masked, so that some GPUs wait for others; "
        )
        known += f"Meta's later balancing makes iterations {_BALANCED} times as fast, for which ours is at "
        yield Reason(llama, f"{known}{_percent(balanced)}")
    whole, four = _outside(_DEEPSEEK)
    rest = (1 + deviation(whole)) / (1 + deviation(four)) - 1
    known = f"if all of it took longer by the same factor as that row, {_percent(rest)}"
    yield Reason(whole, f"model: the same kernels as in the next row; {known}; a job also waits beside iterations")
    theirs_ms, ours_ms = (found.products + found.attention for found in (_PROFILED_MS, _KERNELS_MS))
    known = f"model: kernels that memory limits take {_PROFILED_MS.memory} ms, ours {_KERNELS_MS.memory:.0f}"
    known += f"; products and attention {theirs_ms}, ours {ours_ms:.0f}"
    yield Reason(four, f"{known}; for 5 ms none of them runs, and for 5 ms two do")


_AnyRow = TypeVar("_AnyRow", bound=Row)


def _outside(rows: Iterable[_AnyRow]) -> list[_AnyRow]:
    """The rows outside 10 %."""
    return [row for row in rows if abs(deviation(row)) >= 0.1]


def _percent(part: float) -> str:
    return f"{100 * part:+.1f} %"


SOURCES = (
    Source(
        "D. Narayanan et al., 2021",
        '"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, '
        "arXiv:2104.04473, Table 1. Microbatches and chunks are those of the script that made the table "
        "(github.com/NVIDIA/Megatron-LM, `examples/sc21/run_table_1.sh`). All activations are computed again, and "
        "Equation 3 counts that. Copies sum gradients in half precision (`--fp16` in `CONFIG.sh`): during the backward "
        "pass without pipelines (`DDP=torch`), after it with them (`DDP=local`). Tensor groups sum gradients of inputs "
        "with nothing behind (`overlap_inputs`): the script is of 10 August 2021 (commit de7dc40f), and products hide "
        "these sums since 2 September (16c90445). The code of 2021 was slower than that of 2022, next section: a "
        f"copy's 280 sequences through 530B on 280 GPUs took {_later(8, 4, published=True):.0f} % longer than there "
        f"({_later(8, 4, published=False):.0f} % in the model), and 512 through 1T on 512 GPUs "
        f"{_later(9, 6, published=True):.0f} % ({_later(9, 6, published=False):.0f} %), of which exchanges between "
        "copies are at most 1 %. No source says which kernels gained the rest. Without pipelines the gap falls with "
        f"the hidden size, from {-100 * deviation(_MEGATRON[0]):.0f} % at 2,304 to "
        f"{-100 * deviation(_MEGATRON[3]):.0f} at 6,144, as if small kernels were slower than here.",
        0,
        _MEGATRON,
    ),
    Source(
        "V. Korthikanti et al., 2022",
        '"Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198, Tables 3 and 5. The first '
        "row of a model has full recomputation, the second one selective recomputation with sequence parallelism.",
        8,
        _KORTHIKANTI,
    ),
    Source(
        "Z. Jiang et al., 2024",
        '"MegaScale: Scaling Large Language Model Training to More Than 10,000 GPUs", NSDI 2024, arXiv:2402.15627, '
        "Tables 1 and 2. Section 6.1 has six chunks and a vocabulary of 64,000. The sequences of a microbatch are "
        "left out: one or two, because by Table 3 batches of 768 are 4.8 % faster than those of 256 on 256 GPUs, in "
        f"the model {_batch_gain(1):.1f}, {_batch_gain(2):.1f} and {_batch_gain(4):.1f} % with one, two and four. With "
        f"four, 3,072 GPUs would be at {_percent(deviation(_with_four(4)))} and 6,144 at "
        f"{_percent(deviation(_with_four(5)))}. Copies exchange gradients once an iteration "
        "(`zero=1`): with the ZeRO-2 that they name our copies would exchange them in every microbatch, and the "
        f"estimate for 1,024 GPUs would be {_zero_2():.0f} % too long. Transfers and collectives of tensor groups "
        "overlap with computing, and attention and MLP of a layer have one norm and one sum (parallel blocks). Sliding "
        "windows, whose size is not printed, are left out; by Table 3 they gain 1.9 %. From 256 to 3,072 GPUs a "
        "sequence of a copy takes "
        f"{_more(0, 4, published=True):.0f} % longer in the source and {_more(0, 4, published=False):.0f} % in the "
        "model: what else a larger cluster costs, such as slow machines and flows that meet, the source says in words "
        "only.",
        0,
        _MEGASCALE,
    ),
    Source(
        "Meta, 2024",
        '"The Llama 3 Herd of Models", arXiv:2407.21783, Table 4. By section 3.3.2 the first and the last chunk have '
        "no layer because each lacks one, so chunks have one, and transfers overlap with computing. The code of the "
        "training is not public. In the released code (github.com/meta-llama/llama3, `llama/model.py`) queries, keys, "
        "values, the gate and the first linear layer are products of their own, which add up their gradients of the "
        "input, and nothing hides what tensor groups send (fairscale, `nn/model_parallel/mappings.py`). With one "
        f"product for each input, as in Megatron-LM, the first row would be at {_as_megatron(0, together=True)}; with "
        f"sums of input gradients hidden, at {_as_megatron(0, hidden=True)}; with both, at "
        f"{_as_megatron(0, together=True, hidden=True)}. Its measure of MFU, PaLM's, counts masked scores: "
        f"without them the published iterations would be {_masked(_LLAMA[0])} shorter, the third one "
        f"{_masked(_LLAMA[2])}. "
        "The third row has sequences of 131,072 tokens, which 16 tensor groups share (`context=16`). How long "
        'documents are is not printed; balancing them is from "WLB-LLM" (Z. Wang et al., OSDI 2025, arXiv:2503.17924). '
        "Rotary positions, "
        f"which our layers do not have, would take {_rotary():.1f} % of computing.",
        0,
        _LLAMA,
    ),
    Source(
        "NVIDIA, 2025",
        "Megatron Bridge, github.com/NVIDIA-NeMo/Megatron-Bridge, `docs/performance-summary.md` and its archive, dense "
        "models on DGX-H100: three rows of release 25.11 and two of 26.02. Nothing is left open. Linear layers "
        "multiply in FP8, attention is cuDNN's, and the recipes overlap collectives of tensor groups "
        "(`comm_overlap`). Llama 3 405B has two tensor groups for each sequence, and 8B ZeRO's stage 3.",
        None,
        tuple(_nvidia()),
    ),
    Source(
        "DeepSeek-AI, 2024",
        '"DeepSeek-V3 Technical Report", arXiv:2412.19437: 180,000 GPU hours of 2,048 H800 for a trillion tokens, with '
        "batches of 15,360 sequences. These hours have all that a job waits for beside iterations. The second row is "
        "the profile that DeepSeek published (github.com/deepseek-ai/profile-data, `train.json`): the kernels of one "
        "forward and one backward pass of four layers that overlap. It names DeepSeek's kernels on CUTLASS, of which "
        "DeepGEMM says how much slower than its own they were, for products and for gradients of weights "
        "(github.com/deepseek-ai/DeepGEMM, README of February 2025 and pull request 95). There, products take "
        f"{_PROFILED_MS.products} ms (ours {_KERNELS_MS.products:.0f}), attention {_PROFILED_MS.attention} ms "
        f"({_KERNELS_MS.attention:.0f}), and kernels that memory limits {_PROFILED_MS.memory} ms "
        f"({_KERNELS_MS.memory:.0f}). The latter reach 1.1 to 2.6 of 3.35 TB/s there, and 2.5 to 3.0 where we measured "
        "them alone: others send tokens beside them, and no source says what that costs. A second stream multiplies "
        "beside the first one for 5 ms, and for 5 ms both wait for tokens.",
        None,
        _DEEPSEEK,
    ),
)


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# Published rates of training",
        "",
        _wrapped(
            "The [closed form](../training.md) beside iterations that others measured. Nothing is fitted to a row. "
            "Where a source leaves out how many sequences a microbatch has, the fastest choice that fits into memory "
            "counts. A deviation below 0 means that the estimate is too fast. "
            "Published teraFLOP/s of a GPU are seconds by the operations of Equation 7 of Korthikanti et al., with "
            "all scores of attention."
        ),
        "",
        _wrapped(
            "Most estimates are too fast. The closed form has no slow GPU, no packet that is late, no launches of "
            "kernels, and kernels that memory limits run in it as fast beside collectives as alone. Llama 3 405B in "
            "FP8 and with cuDNN's attention is within 9 % of NVIDIA's iterations."
        ),
        "",
        *_summary(),
        "",
        "## Rows outside 10 %",
        "",
        _wrapped(
            "The third column says by how much longer computing would have to take for the published time, if nothing "
            "else did. Model: ours lacks something that the source shows. Not known: no parameter that the source "
            "leaves out explains it, no mechanism that it describes is missing, and it does not contradict itself. No "
            "public source that we know has a mechanism with a number that closes these gaps."
        ),
        "",
        "| row | deviation | computing | what is known |",
        "|---|---|---|---|",
        *(
            f"| {row.cells[0]}, {row.cells[1]} GPUs | {_percent(deviation(row))} | {_percent(row.missing)} | {known} |"
            for row, known in reasons()
        ),
        "",
        "This command prints the page:",
        "",
        "```sh",
        ".venv/bin/python -m testbed.training.published",
        "```",
    ]
    for source in SOURCES:
        mean = f"The mean absolute deviation is {100 * _mean(source.rows):.1f} %."
        lines += ["", f"## {source.title}", "", _wrapped(f"{source.where} {mean}"), ""]
        lines += ["| model | GPUs | batch | microbatch | chunks | published s | estimated s | deviation |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        lines += [
            f"| {' | '.join(row.cells)} | {_seconds(row.seconds)} | {_seconds(row.estimated_s)} | "
            f"{_percent(deviation(row))} |"
            for row in source.rows
        ]
    return "\n".join(lines) + "\n"


def _summary() -> Iterator[str]:
    """How many rows are within 10 %, before and now."""
    yield "| source | rows | within 10 % before | within 10 % | mean deviation |"
    yield "|---|---|---|---|---|"
    for source in SOURCES:
        within = sum(abs(deviation(row)) < 0.1 for row in source.rows)
        before = "new" if source.within_before is None else source.within_before
        yield f"| {source.title} | {len(source.rows)} | {before} | {within} | {100 * _mean(source.rows):.1f} % |"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.4f}"


def _mean(rows: Iterable[Row]) -> float:
    """The mean of the absolute deviations."""
    return fmean(abs(deviation(row)) for row in rows)


def _wrapped(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    print(page(), end="")
