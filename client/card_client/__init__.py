"""Async streaming client for CARD on Triton."""

from card_client.client import CardClient, Tls
from card_client.errors import CardError
from card_client.wire import Completion, Delta, GenerateRequest
