# SPDX-License-Identifier: Apache-2.0
"""The paper's numbers compared with ours."""

from collections.abc import Iterator
from math import isclose

from testbed.research.papers.claim import Claim
from testbed.research.papers.findings import Drawing, Findings
from testbed.research.papers.rail_only import cost, section_iv, section_v, sizes, times, traffic
from testbed.research.papers.rail_only.sizes import A100, GH200, GPUS_PER_DOMAIN, H100

_TABLE_2 = {  # GPUs, radix -> cost and power saved in per cent, as printed
    (32768, 64): (38, 37),
    (32768, 128): (77, 75),
    (32768, 256): (62, 60),
    (65536, 64): (38, 37),
    (65536, 128): (38, 37),
    (65536, 256): (77, 75),
}
_LOST = "Our copy of the paper lacks this cell; the savings follow from it."


def claims(quick: bool = False) -> list[Claim]:
    """All claims that are checked, in the paper's order. With `quick`, without those that need a search."""
    return [
        *sizes.of_platforms(),
        *sizes.of_megatron(),
        *_of_traffic(),
        *sizes.of_gh200(),
        *_of_collectives(),
        *sizes.of_experts(),
        *_of_experts(),
        *_of_alltoall(),
        *section_iv.of_failures(),
        *_of_spares(),
        *section_v.of_utilisation(),
        *sizes.of_searches(),
        *(() if quick else section_v.of_searches()),
        *sizes.of_prices(),
        *_of_table_2(),
        *_of_totals(),
        *_of_switches(),
    ]


def find(quick: bool) -> Findings:
    """All claims and figures. With `quick`, without those that need a search."""
    if quick:
        return Findings(claims(quick))
    from testbed.research.papers.rail_only import plots

    return Findings(
        claims(),
        (
            Drawing(
                "rail-only-domains",
                "Figure 8: iteration time by size of an HB domain",
                plots.domain_sizes,
            ),
            Drawing(
                "rail-only-batches",
                "Figure 10: performance by batch, relative to one HB domain",
                plots.batch_sizes,
            ),
        ),
    )


def _of_traffic() -> Iterator[Claim]:
    accounting = "Two-byte activations and gradients, ring collectives (traffic.py)."
    for training in traffic.MEGATRON:
        name = training.model.name
        bytes_sent = traffic.volume(training)
        with_tensor, without = traffic.pair_share(training)
        percent = 100 * bytes_sent.tensor / bytes_sent.total
        share = "tensor-parallel share"
        yield Claim("Fig. 2a", f"{name}: {share}", "%", percent, 75, 0, "more than", accounting, share)
        idle = "pairs without traffic"
        yield Claim("Fig. 2b", f"{name}: {idle}", "%", 100 * without, 99, 0, "more than", series=idle)
        yield Claim(
            "Fig. 2b",
            f"{name}: pairs with tensor-parallel traffic",
            "%",
            100 * with_tensor,
            0.04,
            2,
            "less than",
            "In a ring each GPU sends to one other: 1 / (GPUs - 1).",
            "pairs with tensor-parallel traffic",
        )
    largest = traffic.volume(traffic.MEGATRON[-1])
    readings = sorted(traffic.tensor_readings(traffic.MEGATRON[-1]).values())
    yield Claim(
        "III-B", "GPT-1T: data parallelism, per GPU", "GB", largest.data_nic / 1e9, 6, 0, note='The paper says "about".'
    )
    yield Claim(
        "III-B",
        "GPT-1T: tensor parallelism, per GPU",
        "GB",
        largest.tensor / 1e9,
        300,
        0,
        note=f"By the rule of the 6 GB; other ways to count give {min(readings) / 1e9:.0f} to "
        f"{max(readings) / 1e9:.0f} (traffic.py).",
    )
    on_gh200 = traffic.volume(traffic.GH200)
    yield Claim(
        "Fig. 4",
        "GPT-1T on GH200: data parallelism over NICs",
        "%",
        100 * on_gh200.data_nic / on_gh200.total,
        0.8,
        1,
        note="The paper does not say what traffic it counts here.",
    )


def _of_collectives() -> Iterator[Claim]:
    share = times.all_reduce_hb_share(GH200)
    yield Claim(
        "III-B",
        "all-reduce, 32 x 2 GPUs: bytes in HB domains",
        "%",
        100 * share,
        98,
        0,
        note="The formula gives 62/63.",
        series="all-reduce, 32 x 2 GPUs: bytes over NICs, in HB domains",
    )
    yield Claim(
        "III-B",
        "all-reduce, 32 x 2 GPUs: bytes over NICs",
        "%",
        100 * (1 - share),
        2,
        0,
        note="The formula gives 1/63. The paper prints one digit.",
        series="all-reduce, 32 x 2 GPUs: bytes over NICs, in HB domains",
    )
    yield Claim(
        "Eq. 1",
        "all-gather of 1 GB, 32 x 2 GPUs of GH200",
        "ms",
        1e3 * times.all_gather_s(GH200, 1e9),
        note="The paper prints no example. Over NICs alone, 8 * 63/64 GB take "
        f"{8 * 63 / 64 / 400 / times.all_gather_s(GH200, 1e9):.1f} times as long.",
    )


def _of_experts() -> Iterator[Claim]:
    exchanged, within, between = traffic.moe_volume()
    yield Claim(
        "Fig. 5",
        "MoE-1.3B: all-to-all share",
        "%",
        100 * exchanged / (exchanged + within + between),
        27,
        0,
        note="910 million parameters outside of experts; with an output layer of its own it is 28 %.",
    )


def _of_alltoall() -> Iterator[Claim]:
    for name, grid, printed in (("DGX A100", A100, 8.2), ("DGX H100", H100, 11.2)):
        yield Claim(
            "IV-B",
            f"{name}: all-to-all slowdown, Eq. 3 / Eq. 2 - 1",
            "%",
            100 * times.alltoall_slowdown(grid),
            printed,
            1,
            note="Eq. 3 with x = y; C_S / C_F = 200 / 2400 and 400 / 3600 Gbit/s.",
            series="DGX A100, H100: all-to-all slowdown, Eq. 3 / Eq. 2 - 1",
        )


def _of_table_2() -> Iterator[Claim]:
    for (gpus, radix), (usd, watts) in _TABLE_2.items():
        row = f"{gpus} GPUs, radix {radix}"
        before = cost.rail_optimised(gpus, radix)
        after = cost.rail_only(gpus, radix, GPUS_PER_DOMAIN)
        for what, old, new in (
            ("switches", before.switches, after.switches),
            ("transceivers", before.transceivers, after.transceivers),
        ):
            yield Claim("Table II", f"{row}: {what}, rail-optimised", "", old, note=_LOST)
            yield Claim("Table II", f"{row}: {what}, rail-only", "", new, note=_LOST)
        for what, printed, fraction in (
            ("cost saved", usd, cost.saving(before.usd, after.usd)),
            ("power saved", watts, cost.saving(before.watts, after.watts)),
        ):
            yield Claim("Table II", f"{row}: {what}", "%", 100 * fraction, printed, series=what)


def _of_totals() -> Iterator[Claim]:
    pairs = [(cost.rail_optimised(*row), cost.rail_only(*row, GPUS_PER_DOMAIN)) for row in _TABLE_2]
    dollars = [(before.usd - after.usd) / 1e6 for before, after in pairs]
    megawatts = [(before.watts - after.watts) / 1e6 for before, after in pairs]
    largest = cost.rail_optimised(32768, 64)
    kilo = "All printed megawatts are ours / 1.024: 32,000 GPUs, or a kilo of 1,024."
    yield Claim(
        "V-E",
        "least cost saved",
        "M$",
        min(dollars),
        117,
        note="117.1 is the saving of 32768 GPUs with radix 128, and of 65536 with radix 64.",
        series="least, most cost saved",
    )
    yield Claim("V-E", "most cost saved", "M$", max(dollars), 234, series="least, most cost saved")
    series = "least, most power saved"
    yield Claim("V-E", "least power saved", "MW", min(megawatts), 1.7, 1, note=kilo, series=series)
    yield Claim("V-E", "most power saved", "MW", max(megawatts), 6.9, 1, note=kilo, series=series)
    cut = "Section I cuts off 76.6; the abstract, V-E and VII round it to 77."
    for what, unit, printed in (("cost", "usd", (38, 76)), ("power", "watts", (37, 75))):
        saved = [100 * cost.saving(getattr(before, unit), getattr(after, unit)) for before, after in pairs]
        for end, ours, number in (("least", min(saved), printed[0]), ("most", max(saved), printed[1])):
            note = cut if number == 76 else ""
            yield Claim("I", f"{end} {what} saved", "%", ours, number, note=note, series=f"least, most {what} saved")
    yield Claim("I", "peak power of a Clos of 32768 GPUs", "MW", largest.watts / 1e6, 4.6, 1, note=kilo)
    yield Claim(
        "I",
        "cost of a Clos of 32768 GPUs",
        "M$",
        largest.usd / 1e6,
        200,
        note="The paper says 30,000 GPUs; its prices (Eq. 4) give less.",
    )


def _of_spares() -> Iterator[Claim]:
    """Section IV-C: fewer switches, and cheaper with extra ones."""
    pairs = [(cost.rail_optimised(*row), cost.rail_only(*row, GPUS_PER_DOMAIN)) for row in _TABLE_2]
    switches = [100 * after.switches / before.switches for before, after in pairs]
    dollars = [100 * cost.with_spares(after, GPUS_PER_DOMAIN).usd / before.usd for before, after in pairs]
    note = "The greatest of Table II's six; the paper prints no number."
    yield Claim("IV-C", "switches, of rail-optimised", "%", max(switches), 100, 0, "less than", note)
    yield Claim(
        "IV-C",
        "cost with K extra switches, of rail-optimised",
        "%",
        max(dollars),
        100,
        0,
        "less than",
        note,
    )


def _of_switches() -> Iterator[Claim]:
    """Section V-E on switches of 64 ports."""
    for gpus in (32768, 65536):
        before, after = cost.rail_optimised(gpus, 64), cost.rail_only(gpus, 64, GPUS_PER_DOMAIN)
        name, series = f"{gpus} GPUs, radix 64", "radix 64: tiers, rail-optimised"
        yield Claim("V-E", f"{name}: tiers, rail-optimised", "", before.tiers, 3, series=series)
        yield Claim("V-E", f"{name}: tiers, rail-only", "", after.tiers, 2, series="radix 64: tiers, rail-only")
        for what, unit in (("cost", "usd"), ("power", "watts")):
            saved = _saved(gpus, unit)
            least = [radix for radix, fraction in saved.items() if isclose(fraction, min(saved.values()))]
            note = f"Radix {least[1]} saves as little." if len(least) > 1 else ""
            yield Claim(
                "V-E", f"{gpus} GPUs: radix that saves least {what}", "", least[0], 64, note=note,
                series="radix that saves least cost, power",
            )  # fmt: skip
        usd, watts = (number / 100 for number in _TABLE_2[gpus, 64])
        yield Claim(
            "V-E",
            f"{name}: rail-only, of all switches",
            "%",
            100 * after.switches / before.switches,
            75,
            note=f"The text contradicts Table II: with its savings, Equations 4 and 5 give "
            f"{100 * cost.switches_left(before, usd, watts):.0f} %.",
            series="radix 64: rail-only, of all switches",
        )


def _saved(gpus: int, unit: str) -> dict[int, float]:
    """By radix: the fraction of cost (`usd`) or power (`watts`) that rail-only saves."""
    return {
        radix: cost.saving(
            getattr(cost.rail_optimised(gpus, radix), unit), getattr(cost.rail_only(gpus, radix, GPUS_PER_DOMAIN), unit)
        )
        for count, radix in _TABLE_2
        if count == gpus
    }
