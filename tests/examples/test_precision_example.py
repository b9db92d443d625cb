"""The example of the precision report finds the scale for one model, and the layers for the other."""

from __future__ import annotations


def test_precision_report_advises_a_scale_and_layers(run_example, tmp_path):
    text = " ".join(run_example("precision_report", str(tmp_path)))
    assert "take 4096; from 2 to 524288 fit" in " ".join(text.split())
    assert "`sums` computes numbers up to 2^18" in text
    assert "`means` would then get numbers that are beyond float16" in text
    assert text.count(": 0 of 1") == 2
    for name in ("small_losses", "large_sums"):
        assert (tmp_path / f"{name}.html").read_text().startswith("<!doctype html>")
