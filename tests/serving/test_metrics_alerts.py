"""Every alert fires when it should, and none does while all is well: judged by promtool."""

from __future__ import annotations

from pathlib import Path

import yaml
from prometheus_server import RULES, check_with_promtool

HOUR = 60
"""Minutes; series hold one value a minute."""
CALM = {
    'up{job="card",instance="triton:8002"}': f"1x{HOUR}",
    'up{job="card",instance="triton:8003"}': f"1x{HOUR}",
    'up{job="card/card",instance="10.0.0.7:8002"}': f"1x{HOUR}",
    'up{job="discard",instance="10.0.0.8:80"}': f"0x{HOUR}",  # of another service
    'card_service_ready{job="card"}': f"1x{HOUR}",
    'card_model_well{model="target"}': f"1x{HOUR}",
    'card_model_well{model="draft"}': f"1x{HOUR}",
    'card_model_reloads_total{model="draft"}': f"0x{HOUR}",
    "card_server_restarts_total": f"0x{HOUR}",
    "card_guard_restarts_total": f"0x{HOUR}",
    'card_requests_total{decoding="card",outcome="stop"}': f"0+600x{HOUR}",
    'card_requests_total{decoding="card",outcome="internal"}': f"0x{HOUR}",
    'card_requests_total{decoding="card",outcome="deadline_exceeded"}': f"0x{HOUR}",
    'card_rejections_total{reason="queue_full"}': f"0x{HOUR}",
    'card_rejections_total{reason="deadline_exceeded"}': f"0x{HOUR}",
    'card_rejections_total{reason="invalid_argument"}': f"0+60x{HOUR}",
    "card_queued_requests": f"0x{HOUR}",
    'card_time_to_first_token_seconds_bucket{decoding="card",le="2.5"}': f"0+600x{HOUR}",
    'card_time_to_first_token_seconds_bucket{decoding="card",le="1"}': f"0+600x{HOUR}",
    'card_time_to_first_token_seconds_bucket{decoding="card",le="+Inf"}': f"0+600x{HOUR}",
    'card_inter_token_latency_seconds_bucket{decoding="card",le="0.05"}': f"0+600x{HOUR}",
    'card_inter_token_latency_seconds_bucket{decoding="card",le="1"}': f"0+600x{HOUR}",
    'card_inter_token_latency_seconds_bucket{decoding="card",le="+Inf"}': f"0+600x{HOUR}",
    'card_queries_total{decoding="card"}': f"0+1000x{HOUR}",
    'card_query_hits_total{decoding="card"}': f"0+800x{HOUR}",
    'card_drafted_tokens_total{decoding="card"}': f"0+1000x{HOUR}",
    'card_accepted_tokens_total{decoding="card"}': f"0+600x{HOUR}",
    "card_slots_in_use": f"2x{HOUR}",
    'card_open_sessions{decoding="card"}': f"2x{HOUR}",
    'card_process_resident_memory_bytes{process="card"}': f"100000000+1000x{HOUR}",
    'card_process_open_files{process="server"}': f"60x{HOUR}",
}
"""A service that does its work for an hour."""

TROUBLE = {
    "CardAbsent": {'card_service_ready{job="card"}': "1x5"},
    "CardUnscraped": {'up{job="card",instance="triton:8002"}': f"0x{HOUR}"},
    "CardNotReady": {'card_service_ready{job="card"}': f"0x{HOUR}"},
    "CardModelDown": {'card_model_well{model="target"}': f"0x{HOUR}"},
    "CardDraftDown": {'card_model_well{model="draft"}': f"0x{HOUR}"},
    "CardModelReloading": {'card_model_reloads_total{model="draft"}': f"0+1x{HOUR}"},
    "CardServerRestarted": {"card_server_restarts_total": f"0x55 1x{HOUR}"},
    "CardGuardRestarted": {"card_guard_restarts_total": f"0x55 1x{HOUR}"},
    "CardFailing": {'card_requests_total{decoding="card",outcome="internal"}': f"0+20x{HOUR}"},
    "CardRejecting": {'card_rejections_total{reason="queue_full"}': f"0+60x{HOUR}"},
    "CardQueueing": {"card_queued_requests": f"3x{HOUR}"},
    "CardDeadlinesExceeded": {
        'card_requests_total{decoding="card",outcome="deadline_exceeded"}': f"0+60x{HOUR}"
    },
    "CardFirstTokenSlow": {
        'card_time_to_first_token_seconds_bucket{decoding="card",le="1"}': f"0+10x{HOUR}"
    },
    "CardStreamsStalling": {
        'card_inter_token_latency_seconds_bucket{decoding="card",le="0.05"}': f"0+500x{HOUR}"
    },
    "CardCacheMissing": {'card_query_hits_total{decoding="card"}': f"0+100x{HOUR}"},
    "CardCandidatesRejected": {'card_accepted_tokens_total{decoding="card"}': f"0+50x{HOUR}"},
    "CardSlotsHeld": {'card_open_sessions{decoding="card"}': f"1x{HOUR}"},
    "CardMemoryGrowing": {
        'card_process_resident_memory_bytes{process="card"}': f"100000000+2000000x{HOUR}"
    },
    "CardFilesGrowing": {'card_process_open_files{process="server"}': f"60+2x{HOUR}"},
}
"""For each alert, what is different from a calm hour."""


IN_THE_QUEUE = {'card_rejections_total{reason="deadline_exceeded"}': f"0+60x{HOUR}"}
"""Timeouts of requests that never got a slot."""
NO_DEVICES = {'card_model_well{model="remote"}': f"0x{HOUR}"}
"""What takes the candidates of devices is away, which costs no answer."""
A_POD_UNSCRAPED = {'up{job="card/card",instance="10.0.0.7:8002"}': f"1x30 0x{HOUR - 31}"}
"""The same on Kubernetes, under the job that a PodMonitor makes."""


def alerts() -> set[str]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def scenario(different: dict[str, str], firing: str | None) -> dict[str, object]:
    """An hour, at whose end `firing` and nothing else fires."""
    series = [{"series": name, "values": values} for name, values in (CALM | different).items()]
    counted = f'count(ALERTS{{alertstate="firing",alertname="{firing}"}}) > bool 0'
    nothing = 'count(ALERTS{alertstate="firing"}) or vector(0)'
    checks = [{"expr": nothing, "eval_time": "60m", "exp_samples": [{"value": 0}]}]
    if firing is not None:
        others = f'count(ALERTS{{alertstate="firing",alertname!="{firing}"}}) or vector(0)'
        checks = [
            {"expr": counted, "eval_time": "60m", "exp_samples": [{"value": 1}]},
            {"expr": others, "eval_time": "60m", "exp_samples": [{"value": 0}]},
        ]
    return {"interval": "1m", "input_series": series, "promql_expr_test": checks}


def test_every_alert_fires_on_its_trouble_and_on_nothing_else(tmp_path: Path) -> None:
    assert set(TROUBLE) == alerts()
    scenarios = [scenario({}, None), *(scenario(series, name) for name, series in TROUBLE.items())]
    scenarios.append(scenario(IN_THE_QUEUE, "CardDeadlinesExceeded"))
    scenarios.append(scenario(A_POD_UNSCRAPED, "CardUnscraped"))
    scenarios.append(scenario(NO_DEVICES, "CardDraftDown"))
    file = tmp_path / "scenarios.yml"
    content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": scenarios}
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    check_with_promtool("test", "rules", file)
