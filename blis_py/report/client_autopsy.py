"""The autopsy of a client's run on the terminal."""

from __future__ import annotations

from blis_py.calibrate.client_autopsy import ClientAutopsy


def print_client_autopsy(autopsies: tuple[ClientAutopsy, ...]) -> None:
    """Every latency with its parts, the largest first, and what to try."""
    print("Error of the mean, predicted minus measured, as far as the client's times explain it:")
    for one in autopsies:
        error = f"{one.error_s * 1e3:+,.3f} ms, {one.error_s / one.measured_s:+.1%}"
        print(f"\n{one.latency}: {one.measured_s * 1e3:,.3f} ms measured, {error}")
        for part in sorted(one.parts, key=lambda part: -abs(part.share_s)):
            interval = f"({part.low_s * 1e3:+.3f} to {part.high_s * 1e3:+.3f})"
            print(f"  {part.title:26}{part.share_s * 1e3:>+10.3f}  {interval:24}{part.found}")
            if part.fix:
                print(f"    try: {part.fix}")
