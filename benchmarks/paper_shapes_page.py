"""docs/paper-shapes.md from the results of benchmarks/paper_shapes.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.ladder import RUNGS

_TEXT = {
    "head": """# The shapes of the paper's figures

Simulated, on {when}, by `benchmarks/paper_shapes.py --markdown docs/paper-shapes.md` (numbers in
[paper-shapes.json](paper-shapes.json)): full training steps of the paper's five families on described machines. The
paper (Ren et al., HPCA 2021) measured 24 cores with 96 GB of DRAM and 756 GB of Optane. Its figures were read off; what
we compare is shape, not digits.
""",
    "fractions": """
## Speed against fast memory

Of fast-only speed, `sentinel-2021` on `slow-optane-mlink` (0.5 TFLOP/s, the slowest compute described):
""",
    "why": """
Ours are higher, because slow memory costs these steps less. A layer of a described machine takes the longer of its
FLOPs and its traffic (a roofline: perfect overlap, each operand read once, all channels busy), so what computes for
longer than it reads is never slowed down. The paper's slow-only runs lose far more; even without any overlap the
described Optane, {ratio} times slower than DRAM for these mixes of reads and writes, explains only part of it:

""",
    "scaled": """
Now the described slow tier is made slower until slow-only loses what it lost in the paper, and nothing else is changed.
Of fast-only speed:
""",
    "scaled_end": """
With that one input the means come near the paper's. Single networks do not: it takes a slow tier of {slowest} times
less bandwidth to slow {names} that much, so the paper's runs of these were bound by memory where a roofline of
their FLOPs is bound by compute (operators that read operands several times, caches that thrash, threads that share an
Optane buffer), and one factor on all accesses is a crude stand-in for that. The order of the networks by speed-up over
slow-only is that of these slow-downs, a property of machine and operators more than of the policy:
""",
    "swapped": """
DCGAN and ResNet-32 are swapped: the paper has DCGAN before ResNet-32. That is how these two traces use room, not how
they are planned. On the slower slow tier, with 20 %:
""",
    "swapped_end": """
*Bound* is what no plan of this kind can pass there: for DCGAN {dcgan:.2f} of fast-only speed, {over:.2f} times
slow-only, where ResNet-32 reaches {resnet:.2f} times. DCGAN computes most for each byte, so it takes the slowest slow
tier to slow it as in the paper, and each byte left there costs most. And {wide:.0%} of its traffic is in layers that
touch more bytes than there is fast memory (the generator's backward pass at 64x64 pixels touches {widest:.0%} of the
footprint): of these slow memory must serve some. How much depends on the batch; ours is large:
""",
    "batches_end": """
In a small batch weights and optimizer state take the room, in a large one the widest layers do. Between them, at
{best}, `sentinel` has {ours:.2f} and comes to {best_over:.2f} times slow-only, which is the paper's {paper_over:.1f}.
The rest of the swap is ResNet-32, which loses less here than in the paper: {r2021:.2f} of fast-only speed with
`sentinel-2021`, for {r_paper:.2f}.
""",
    "mil": """
## Interval length

Of fast-only speed at 20 % on `optane-m5`, by migration interval length in layers. The best of ResNet-32 in the paper is
8, with 0.76 at 5 and 0.72 at 11 around it.
""",
    "ladder": """
## The ladder

Of fast-only speed at 20 % on `optane-m5`, each rung at the interval length that is best for it. Co-allocation changes
what small tensors share pages: little at these sizes, where tensors above 64 KiB are nearly all bytes.
""",
    "fits": """
## A step that fits

With fast memory for the whole footprint every policy keeps all in it; of fast-only speed: {fits}.
""",
}


def page(found: Mapping[str, Any], fast: Sequence[str]) -> str:
    """The page as Markdown."""
    text = "\n".join(_lines(found, fast))
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.rstrip("\n") + "\n"


def _lines(found: Mapping[str, Any], fast: Sequence[str]) -> Iterator[str]:
    families, paper = found["families"], found["paper"]
    yield _TEXT["head"].format(when=found["when"])
    yield _TEXT["fractions"]
    yield from _fractions(families, paper, "fraction", fast)
    inputs = [f["inputs"] for f in families.values()]
    ratios = [i["slow_traffic_s"] / i["fast_traffic_s"] for i in inputs]
    yield _TEXT["why"].format(ratio=f"{min(ratios):.1f} to {max(ratios):.1f}")
    yield from _table(
        ("", "FLOPs alone s", "traffic, fast s", "traffic, slow s", "slow-only", "without overlap", "in the paper"),
        [
            (name, *(f"{i[key]:.2f}" for key in ("compute_s", "fast_traffic_s", "slow_traffic_s")), *_slow_only(f, i))
            for (name, f), i in zip(families.items(), inputs, strict=True)
        ],
    )
    yield _TEXT["scaled"]
    yield from _fractions(families, paper, "fraction_when_slower", fast)
    by_factor = sorted(families, key=lambda name: -float(families[name]["slow_tier_times_slower"]))[:3]
    factors = [families[name]["slow_tier_times_slower"] for name in by_factor]
    yield _TEXT["scaled_end"].format(slowest=f"{factors[-1]:.0f} to {factors[0]:.0f}", names=", ".join(by_factor))
    yield from _over_slow(families, paper)
    yield from _swapped(found)
    yield _TEXT["mil"]
    for name, f in families.items():
        best = max(f["mil"], key=lambda mil, by=f["mil"]: float(by[mil]))
        sweep = ", ".join(
            f"{mil}: {'**' if mil == best else ''}{v:.3f}{'**' if mil == best else ''}" for mil, v in f["mil"].items()
        )
        yield f"- {name}: {sweep}"
    yield _TEXT["ladder"]
    yield from _table(("", *RUNGS), [(name, *(f"{f['ladder'][r]:.3f}" for r in RUNGS)) for name, f in families.items()])
    yield _TEXT["fits"].format(fits=", ".join(f"{name} {f['fits']:.4f}" for name, f in families.items()))


def _slow_only(family: Mapping[str, Any], inputs: Mapping[str, float]) -> tuple[str, str, str]:
    apart = (inputs["compute_s"] + inputs["fast_traffic_s"]) / (inputs["compute_s"] + inputs["slow_traffic_s"])
    ours = next(iter(family["slow_only"].values()))
    return f"{ours:.2f}", f"{apart:.2f}", f"{family['paper_slow_only']:.2f}"


def _fractions(families: Mapping[str, Any], paper: Mapping[str, Any], key: str, fast: Sequence[str]) -> Iterator[str]:
    """Ours beside the paper's, a row a family, and the means."""
    rows, slower = [], key != "fraction"
    for name, f in families.items():
        ours = [f[key]["sentinel-2021"][share] for share in fast]
        more = (f"{f['slow_tier_times_slower']:.1f}",) if slower else ()
        rows.append((name, *more, *(f"{a:.2f} / {b:.2f}" for a, b in zip(ours, paper[name]["fraction"], strict=True))))
    mean = []
    for i, share in enumerate(fast):
        ours_mean = sum(f[key]["sentinel-2021"][share] for f in families.values()) / len(families)
        theirs = sum(paper[name]["fraction"][i] for name in families) / len(families)
        mean.append(f"{ours_mean:.2f} / {theirs:.2f}")
    rows.append(("mean", *(("",) if slower else ()), *mean))
    heads = ("ours / paper's", *(("slow tier slower by",) if slower else ()), *fast)
    yield from _table(heads, rows)


def _over_slow(families: Mapping[str, Any], paper: Mapping[str, Any]) -> Iterator[str]:
    """Speed-ups over slow-only at 20 %."""
    rows = []
    for name, f in families.items():
        described = f["fraction"]["sentinel-2021"]["20%"] / next(iter(f["slow_only"].values()))
        when_slower = f["fraction_when_slower"]["sentinel-2021"]["20%"] / f["paper_slow_only"]
        rows.append((name, f"{described:.2f}", f"{when_slower:.2f}", f"{paper[name]['over_slow']:.1f}"))
    yield from _table(("over slow-only, 20 %", "described machine", "slow tier made slower", "in the paper"), rows)


def _swapped(found: Mapping[str, Any]) -> Iterator[str]:
    """Why DCGAN and ResNet-32 have changed places: what each layer touches, and what no plan can beat."""
    families, paper, batches = found["families"], found["paper"], found["dcgan_batches"]
    heads = (
        "bytes a kFLOP",
        "persistent",
        "traffic in layers wider than 20%",
        "widest layer",
        "bound",
        "sentinel",
        "sentinel-2021",
    )
    yield _TEXT["swapped"]
    yield from _table(("", *heads), [(name, *_room(f["room"])) for name, f in families.items()])
    slow = {name: f["paper_slow_only"] for name, f in families.items()}
    dcgan, resnet = families["dcgan"]["room"], families["resnet32"]["room"]
    over, reached = dcgan["bound"] / slow["dcgan"], resnet["sentinel"] / slow["resnet32"]
    yield _TEXT["swapped_end"].format(
        dcgan=dcgan["bound"], over=over, resnet=reached, wide=dcgan["wide"], widest=dcgan["widest"]
    )
    yield from _table(("DCGAN, batch", *heads), [(str(batch), *_room(told)) for batch, told in batches.items()])
    best = max(batches, key=lambda batch: float(batches[batch]["sentinel"]))
    yield _TEXT["batches_end"].format(
        best=best,
        ours=batches[best]["sentinel"],
        best_over=batches[best]["sentinel"] / slow["dcgan"],
        paper_over=paper["dcgan"]["over_slow"],
        r2021=resnet["sentinel-2021"],
        r_paper=paper["resnet32"]["fraction"][1],
    )


def _room(told: Mapping[str, Any]) -> tuple[str, ...]:
    shares = (f"{told[key]:.0%}" for key in ("persistent", "wide", "widest"))
    speeds = (f"{told[key]:.3f}" for key in ("bound", "sentinel", "sentinel-2021"))
    return f"{told['bytes_per_kflop']:.0f}", *shares, *speeds


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "| " + " | ".join("---" for _ in heads) + " |"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
