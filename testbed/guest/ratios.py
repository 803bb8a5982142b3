#!/usr/bin/python3
"""Two measurements in alternating rounds of one boot, and their ratio: the median of the pairs, and its 95 % confidence
interval (the sign test, as in bench/src/pairs.rs). With FABRICBIOS_FIGURES in the environment also as the lines of JSON that `cargo xtask
bench` collects."""
import json
import math
import os
import statistics


def interleaved(pairs, first, second):
    """Numbers of both sides, by pair. The order in the pair changes each time, so that neither side always comes
    second."""
    taken = ([], [])
    for pair in range(pairs):
        for side in ((0, 1), (1, 0))[pair % 2]:
            taken[side].append((first, second)[side]())
    return taken


def interval(ratios):
    """The 95 % confidence interval of the median of sorted ratios; None if there are too few."""
    count, tail, skip = len(ratios), 0.0, None
    for heads in range(count // 2):
        tail += math.comb(count, heads) / 2 ** count
        if tail > 0.025:
            break
        skip = heads
    return None if skip is None else (ratios[skip], ratios[count - 1 - skip])


def spread(numbers):
    """Median and range."""
    return f"{statistics.median(numbers):10.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def report(figure, title, unit, names, numbers):
    """Prints the numbers of both sides and the ratio of the first to the second. The name of a figure is its bench, a slash, and
    a word; its unit ends with which numbers are better."""
    ratios = sorted(first / second for first, second in zip(*numbers))
    edges = interval(ratios)
    sure = f"95 % interval {edges[0]:.3f} to {edges[1]:.3f}" if edges else "too few pairs for an interval"
    print(f"{title}, {len(ratios)} pairs ({unit})")
    for name, side in zip(names, numbers):
        print(f"   {name:8} {spread(side)}")
    print(f"   {names[0]} / {names[1]}: median {statistics.median(ratios):.3f}, {sure}", flush=True)
    if "FABRICBIOS_FIGURES" in os.environ:
        low, high = edges or (None, None)
        ours, peer = map(statistics.median, numbers)
        print(json.dumps({"name": figure, "what": f"{title}, {names[0]}", "ours": ours, "peer": peer, "peer_name": names[1],
                          "unit": unit.split(",")[0], "better": "higher" if "more is better" in unit else "lower",
                          "ratio": statistics.median(ratios), "low": low, "high": high, "pairs": len(ratios)}), flush=True)


def lines_of_figures():
    """Arguments with which fabricbios-bench prints these lines too."""
    return ["--json=/dev/stdout"] if "FABRICBIOS_FIGURES" in os.environ else []


def percentile(numbers, percent):
    """The smallest number that this percentage of the numbers does not exceed."""
    ordered = sorted(numbers)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
