"""The client's connection: addresses, TLS, unreachable hosts, health."""

from __future__ import annotations

from pathlib import Path

import pytest
from client_double import TritonDouble, served

from card_client import CardClient, CardError, GenerateRequest, Tls
from card_client.channel import channel_options

REQUEST = GenerateRequest("def f(", 8)


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
async def test_an_unreachable_host_is_named_with_what_to_check(host: str) -> None:
    with served() as gone:
        port = gone.address.rpartition(":")[2]
    async with CardClient(f"{host}:{port}") as client:
        for ask in (client.generate(REQUEST), client.is_ready()):
            with pytest.raises(CardError) as caught:
                await ask
            assert caught.value.code == "UNAVAILABLE"
            assert f"cannot reach {host}:{port}" in caught.value.message
            assert "Check that the server is up" in caught.value.message


async def test_no_proxy_stands_between_a_client_and_its_own_machine(
    triton: TritonDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served() as gone:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://{gone.address}")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for host in ("127.0.0.1", "localhost"):
        async with CardClient(f"{host}:{triton.address.rpartition(':')[2]}") as client:
            await client.generate(REQUEST)
    options = dict(channel_options("[::1]:8001"))
    assert options["grpc.enable_http_proxy"] == 0
    # By itself gRPC waits up to two minutes, the longer the longer a server was away.
    assert int(options["grpc.max_reconnect_backoff_ms"]) <= 1000
    assert int(options["grpc.max_receive_message_length"]) > 1 << 30
    for elsewhere in ("example.com:8001", "dns:///10.0.0.1:8001", "127.0.0.1.example.com:8001"):
        assert ("grpc.enable_http_proxy", 0) not in channel_options(elsewhere)


async def test_a_server_without_its_draft_is_ready_and_without_its_target_is_not(
    triton: TritonDouble,
) -> None:
    triton.ready = False
    triton.models_ready |= dict.fromkeys(("preprocessing", "card", "postprocessing"), True)
    for target in (True, False):
        triton.models_ready["target"] = target
        async with CardClient(triton.address) as client:
            assert await client.is_ready() is target


def test_an_address_may_leave_out_the_port_and_one_that_is_none_is_refused() -> None:
    for url, address in (("host:9001", "host:9001"), ("host", "host:8001"),
                         ("[::1]", "[::1]:8001"), ("[::1]:9001", "[::1]:9001")):  # fmt: skip
        assert CardClient(url).address == address
    for url in ("http://host:8000", "host:port", "host:0", ":8001", "", "host/v2", "a b", "::1",
                "host:1:2"):  # fmt: skip
        with pytest.raises(CardError, match="INVALID_ARGUMENT: url is"):
            CardClient(url)


def test_tls_files_that_are_missing_or_alone_are_refused(tmp_path: Path) -> None:
    present = tmp_path / "cert.pem"
    present.write_text("cert")
    with pytest.raises(CardError, match=r"ca file .* does not exist"):
        Tls(ca=tmp_path / "nowhere.pem")
    with pytest.raises(CardError, match="belong together"):
        Tls(cert=present)
    for name in ("ca", "cert", "key"):
        with pytest.raises(CardError, match=f"the TLS {name} file .* cannot be read"):
            Tls(**{name: Path("a" * 300)})


@pytest.mark.parametrize(
    "headers",
    [{"a b": "x"}, {"": "x"}, {"a-bin": "x"}, {"a": 1}, {1: "a"}, {"a": "\n"}, {"a": "ü"}],
)
def test_headers_that_cannot_travel_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(CardError, match="header") as caught:
        CardClient("localhost:1", headers=headers)
    assert caught.value.code == "INVALID_ARGUMENT"
