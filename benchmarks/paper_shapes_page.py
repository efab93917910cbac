"""docs/paper-shapes.md from the results of benchmarks/paper_shapes.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks._page_parts import table
from benchmarks.ladder import RUNGS

_TEXT = {
    "head": """# The shapes of the paper's figures

Everything on this page is simulated: full training steps of the paper's five networks, on described machines. It was
made on {when} by `benchmarks/paper_shapes.py --markdown docs/paper-shapes.md`; the numbers are in
[paper-shapes.json](paper-shapes.json). The paper (Ren et al., HPCA 2021) measured real hardware: 24 cores, 96 GB of
DRAM and 756 GB of Optane. We read its numbers off its figures, so compare the shape of the curves, not digits.
""",
    "fractions": """
## Speed against fast memory

Speed of `sentinel-2021` as a share of the speed with all memory fast ("fast-only"), on `slow-optane-mlink`, the
described machine with the slowest compute (0.5 TFLOP/s). Columns are the share of the footprint that is fast:
""",
    "why": """
Our speeds are higher because slow memory costs less in our model. The model is a roofline: a layer takes the time of
its FLOPs or the time of its memory traffic, whichever is longer. It assumes perfect overlap, that each operand is read
once, and that all memory channels are busy. A layer that computes for longer than it reads therefore never slows down.

The paper lost far more speed with all memory slow ("slow-only"). The described Optane is {ratio} times slower than
DRAM for these mixes of reads and writes. Even if nothing overlapped, that would explain only a part of the paper's
loss:

""",
    "scaled": """
Next, we make the described slow tier slower until slow-only is as slow as in the paper, its links with it, since none
is faster than its memory, and change nothing else. Shares of fast-only speed are then:
""",
    "scaled_end": """
With that one change the means come near the paper's, but single networks do not. To slow {names} as much as in
the paper, the slow tier needs {slowest} times less bandwidth. So memory must have been the limit of these runs in the
paper, where compute is the limit in our roofline. Possible reasons are operators that read operands several times,
caches that thrash, and threads that share an Optane buffer. One factor on all accesses describes those only crudely.

Ordered by speed-up over slow-only, the networks follow these slow-downs. The order thus says more about machine and
operators than about the policy:
""",
    "swapped": """
DCGAN and ResNet-32 are swapped: in the paper DCGAN comes first. The reason is how these two traces use memory, not
how they are planned. With the slower slow tier and 20 % fast memory:
""",
    "swapped_end": """
*Bound* is a speed that no plan of this kind can exceed. For DCGAN it is {dcgan:.2f} of fast-only speed, or {over:.2f}
times slow-only; ResNet-32 reaches {resnet:.2f} times slow-only. There are two reasons:

- DCGAN computes most for each byte. To slow it as in the paper, the slow tier must be the slowest of all, and then each
  byte left there costs most.
- {wide:.0%} of DCGAN's traffic is in layers that touch more bytes than there is fast memory: the generator's backward
  pass at 64x64 pixels touches {widest:.0%} of the footprint. Slow memory must serve a part of such a layer.

How large that part is depends on the batch. Ours is large:
""",
    "batches_end": """
With a small batch, weights and optimizer state fill fast memory; with a large one, the widest layers do. Between the
two, at a batch of {best}, `sentinel` reaches {ours:.2f} of fast-only speed. That is {best_over:.2f} times slow-only;
the paper has {paper_over:.1f}. The other half of the swap is ResNet-32, which loses less here than in the paper:
`sentinel-2021` reaches {r2021:.2f} of fast-only speed here, and {r_paper:.2f} there.
""",
    "mil": """
## Interval length

Share of fast-only speed on `optane-m5` with 20 % fast memory, by the length of a migration interval in layers. The best
is bold. In the paper ResNet-32 is fastest at 8 layers; it reaches 0.76 at 5 and 0.72 at 11.
""",
    "ladder": """
## What each part of the policy adds

Share of fast-only speed on `optane-m5` with 20 % fast memory. Each column adds one part of the policy, at the interval
length that is best for it. Co-allocation decides which small tensors share pages. It changes little here, since tensors
above 64 KiB have nearly all the bytes.
""",
    "fits": """
## A step that fits

If fast memory has room for the whole footprint, every policy keeps everything there. Shares of fast-only speed: {fits}.
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
    yield from table(
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
    yield from table(("", *RUNGS), [(name, *(f"{f['ladder'][r]:.3f}" for r in RUNGS)) for name, f in families.items()])
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
    yield from table(heads, rows)


def _over_slow(families: Mapping[str, Any], paper: Mapping[str, Any]) -> Iterator[str]:
    """Speed-ups over slow-only at 20 %."""
    rows = []
    for name, f in families.items():
        described = f["fraction"]["sentinel-2021"]["20%"] / next(iter(f["slow_only"].values()))
        when_slower = f["fraction_when_slower"]["sentinel-2021"]["20%"] / f["paper_slow_only"]
        rows.append((name, f"{described:.2f}", f"{when_slower:.2f}", f"{paper[name]['over_slow']:.1f}"))
    yield from table(("over slow-only, 20 %", "described machine", "slow tier made slower", "in the paper"), rows)


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
    yield from table(("", *heads), [(name, *_room(f["room"])) for name, f in families.items()])
    slow = {name: f["paper_slow_only"] for name, f in families.items()}
    dcgan, resnet = families["dcgan"]["room"], families["resnet32"]["room"]
    over, reached = dcgan["bound"] / slow["dcgan"], resnet["sentinel"] / slow["resnet32"]
    yield _TEXT["swapped_end"].format(
        dcgan=dcgan["bound"], over=over, resnet=reached, wide=dcgan["wide"], widest=dcgan["widest"]
    )
    yield from table(("DCGAN, batch", *heads), [(str(batch), *_room(told)) for batch, told in batches.items()])
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
