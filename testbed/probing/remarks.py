# SPDX-License-Identifier: Apache-2.0
"""What a survey tells beyond its paths: packets that were lost, and what an operator has to know. Pure."""

from collections.abc import Iterator, Sequence

from hostlib.probing import ProbeLimits
from netmodel.probing.observations import Observation
from netmodel.probing.paths import FoundPath, PairPaths, paths_of
from testbed.probing.survey import Survey

_INBOUND = "net.ipv4.icmp_errors_use_inbound_ifaddr=1"
_SLACK_S = 0.5
"""How exactly the bucket of a router is known: answers leave it later than probes leave this host."""


def pair_of(survey: Survey) -> PairPaths | None:
    """The paths to the destination, without answers that tell nothing of them; None if no probe left this host."""
    telling = (one for one in survey.observations if one.answer != "hop" or one.ttl not in survey.vague)
    aim = survey.target.protocol, survey.target.destination_port
    return next(
        (found for found in paths_of(telling) if (found.pair.protocol, found.pair.destination_port) == aim), None
    )


def lost_of(survey: Survey, path: FoundPath, limits: ProbeLimits) -> tuple[int, int]:
    """How many packets on a path to the router that tells it apart were lost, and of how many."""
    ports, ttl = set(path.ports), survey.repeated_at
    sent = [one for one in survey.own() if one.ttl == ttl and one.source_port in ports]
    lost = unexplained(sent, limits)
    return lost, sum(one.answer != "none" for one in sent) + lost


def unexplained(sent: Sequence[Observation], limits: ProbeLimits) -> int:
    """How many packets were lost, of all that one router was asked.

    Only answers take tokens from a router's bucket. So its limit can explain a silence only after a whole burst of
    answers within the time in which a burst grows back.
    """
    silent = [one.at_s for one in sent if one.answer == "none"]
    if limits.router_rate == 0:
        return len(silent)
    within_s = limits.router_burst / limits.router_rate + _SLACK_S
    answered = [one.at_s for one in sent if one.answer != "none"]
    return sum(sum(at_s - within_s <= one <= at_s for one in answered) < limits.router_burst for at_s in silent)


def remarks(survey: Survey, found: PairPaths | None) -> Iterator[str]:
    """What to know besides the pair's own findings, a sentence each."""
    if survey.failures:
        first = survey.failures[0]
        by = "" if first.router is None else f", says router {first.router}"
        count = len({one.source_port for one in survey.failures})
        yield f"{count} source ports could not be probed: {first.reason}{by}"
    if found is None or survey.hops == 0:
        if survey.reached:
            yield "no router is on the way, so there is no path to choose"
        return
    if not survey.reached:
        yield (
            f"nobody answered behind hop {survey.hops}: there is the destination, or routers that are silent; if there "
            "are more, name the hop of the topmost ones with --ttl"
        )
    if not any(path.hops[ttl - 1 : ttl] not in ((), (None,)) for path in found.paths for ttl in survey.told_by):
        yield f"no router at hop {survey.told_by[-1]} answered: name another hop with --ttl"
    if survey.vague:
        yield (
            f"answers from hop {survey.vague[0]} on tell nothing of the way, since routers name the port by which the "
            f"answer leaves: ports are pinned up to hop {survey.told_by[-1]}, and parallel links are not told apart; "
            f"on Linux {_INBOUND} names them"
        )
    elif (shared := _shared_hop(survey, found)) is not None:
        hop, here, there = shared
        yield (
            f"{here} paths that differ at hop {hop} lead to {there} addresses at hop {hop + 1}: routers answer by a "
            f"loopback, so parallel links of two routers look like one; on Linux {_INBOUND} names them"
        )
    if found.silent:
        yield f"{len(found.silent)} source ports were not answered, in several attempts each"
    if survey.left_out:
        yield (
            f"{survey.left_out} probes were left out for lack of time: give more with --time, or tell with "
            "--router-rate that routers answer faster"
        )
    if (linear := survey.linear) is not None:
        if linear.affine is None:
            yield "whether the hash is linear is open: ports that would tell were not answered"
        elif linear.affine and linear.model is not None:
            yield (
                f"the hash is linear: a model of {len(linear.model.labels)} paths was right for all "
                f"{linear.verified} ports that tested it, so few probes tell all ports"
            )
        else:
            yield "the hash is not linear, so each port has to be probed"


def _shared_hop(survey: Survey, found: PairPaths) -> tuple[int, int, int] | None:
    """Where paths that differ at a hop have fewer addresses at the next, though each link has its own: hop, and both.

    Only behind the topmost routers, of one link each, is that so.
    """
    hop = survey.told_by[-1]
    full = [path.hops for path in found.paths if len(path.hops) > hop and path.hops[hop - 1] and path.hops[hop]]
    if len(survey.told_by) > 1 or len(full) < len(found.paths):
        return None
    here, there = len({hops[hop - 1] for hops in full}), len({hops[hop] for hops in full})
    return (hop, here, there) if there < here else None
