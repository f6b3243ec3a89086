"""report.json: programs read its keys, so they are written down here, and changing one is a decision."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.runtime.bench import BenchResult, Timing

if TYPE_CHECKING:
    from tests.report.conftest import MadeUp

# A key without more to it is None. "*": the keys are names (of sites, options, operators, stages), all values alike.
KEYS: dict[str, Any] = {
    "format": None, "version": None, "model": None, "random_weights": None, "synthetic_images": None,
    "weights_from": None, "resampled": None, "output": {"kind": None, "names": None, "why": None}, "remarks": None,
    "advice": None,
    "bits": {"weights": None, "activations": None}, "options": {"*": None},
    "versions": {"*": None}, "fingerprints": {"weights": None, "images": None},
    "calibration_images": {"count": None, "skipped": None, "source": None, "built_in": None, "sentence": None,
                           "warnings": None},
    "sites": None,
    "float_parity": {"images": None, "error": None, "tolerance": None, "passed": None},
    "kernels": {
        "summary": None, "fell_back": None, "op_counts": {"*": None}, "floats": None,
        "products": [{"site": None, "product": None, "kernel": None, "integer": None, "operands": None,
                      "unsafe": None}],
    },
    "float_products": {"*": None},
    "site_parity": [{"site": None, "product": None, "kernel": None, "exact": None, "max_error": None,
                     "tolerance": None, "checked": None, "failure": None}],
    "replay": {"largest": None, "limit": None, "sites": {"*": None}},
    "end_to_end": {"images": None, "agreement": None, "relative_error": None, "coin_toss": None, "passed": None,
                   "sentence": None, "identical": None, "own_agreement": None, "own_error": None, "kind": None},
    "against_float": {
        "kind": None,
        "images": None, "agreement": None, "kl": None, "top1_float": None, "top1_quantised": None,
        "drop": {"points": None, "standard_error": None, "lost": None, "gained": None, "images": None},
    },
    "measured_on": None, "measured_images": {"count": None, "source": None, "held_out": None},
    "passes": {"moved_weights": {"*": None}, "products": {"*": None}, "merged": None,
               "operations_before": {"*": None}, "operations_after": {"*": None}, "places": {"*": None}},
    "losses": {"*": {"*": None}}, "twins": {"summary": None, "sites": {"*": None}}, "channels": {"*": None},
    "weight_bits": {"*": None}, "budget": None,
    "latency": {
        "cpu": None, "timings": [{"model": None, "threads": None, "batch": None, "median": None, "low": None,
                                  "high": None, "runs": None, "speed": None,
                                  "modes": None, "cores": None}],
    },
    "bytes": {"float": None, "model": None}, "seconds": {"*": None},
}  # fmt: skip


def require_keys(found: Any, wanted: Any, where: str = "report") -> None:
    """Exactly the wanted keys at every level; values are left alone."""
    if isinstance(wanted, list):
        assert isinstance(found, list) and found, where
        for item in found:
            require_keys(item, wanted[0], f"{where}[]")
    elif isinstance(wanted, dict):
        assert isinstance(found, dict) and found, where
        expected = dict.fromkeys(found, wanted["*"]) if "*" in wanted else wanted
        assert set(found) == set(expected), where
        for key, value in found.items():
            require_keys(value, expected[key], f"{where}.{key}")
    else:
        assert not isinstance(found, dict), where


def test_report_json_has_the_keys_that_programs_read(made_up: MadeUp, tmp_path: Path) -> None:
    sites = {
        name: replace(site, losses={"hessian": 0.5}, forms={"TwinGelu": 0.1, "Affine": 0.2},
                      channels=Channels("norm", (1.0,), (0.0,)))
        for name, site in made_up.report.plan.sites.items()
    }  # fmt: skip
    timings = (Timing("float", 1, 1, 2.2, 2.0, 2.4, 10, 1.0), Timing("model", 1, 1, 1.1, 1.0, 1.2, 10, 2.0))
    floats = {"neck.conv": "a convolution in 4 groups"}
    report = made_up.report_of(replace(made_up.report.plan, sites=sites, floats=floats))
    replace(report, latency=BenchResult(timings, "AVX2")).save(tmp_path)
    require_keys(json.loads((tmp_path / "report.json").read_text(encoding="utf-8")), KEYS)


def test_report_json_says_what_the_report_holds(made_up: MadeUp) -> None:
    data = made_up.report.to_data()
    assert data["against_float"]["agreement"] == made_up.report.against_float.agreement == 98.4
    assert data["kernels"]["summary"] == "5 of 5 products in integers"
    assert data["kernels"]["products"][0]["operands"] == "u8 x s8"
    assert data["replay"] == {
        "largest": 4e-7, "limit": 0.01,
        "sites": {name: number * 1e-7 for number, name in enumerate(made_up.report.plan.sites)},
    }  # fmt: skip
    assert (data["bits"], data["sites"]) == ({"weights": 8, "activations": 6}, 5)
    assert data["bytes"] == {"float": 1_252_262, "model": 418_535}
    assert data["calibration_images"] == {
        "count": 32, "skipped": ["broken.png"], "source": "photos", "built_in": False,
        "sentence": "32 images of photos", "warnings": [],
    }  # fmt: skip
    assert data["measured_images"] == {"count": 500, "source": "embedded digits (test)", "held_out": True}
    assert data["measured_on"] == "500 images of embedded digits (test), not calibrated on"
    assert data["resampled"] is None
    assert (data["weights_from"], data["random_weights"], data["synthetic_images"]) == ("embedded", False, False)


def test_report_json_has_warnings_as_sentences(made_up: MadeUp) -> None:
    images = replace(made_up.report.inputs.calibration_images, warnings=("all are black; give others", "no blue; why"))
    inputs = replace(made_up.report.inputs, calibration_images=images, resampled="position table resampled")
    data = replace(made_up.report, inputs=inputs).to_data()
    assert data["calibration_images"]["warnings"] == ["all are black; give others", "no blue; why"]
    assert data["resampled"] == "position table resampled"
