"""Models: the config of an architecture, the decoder it describes, its weights and its tokenizer."""

from engine.models.config import ModelConfig, load_model_config
from engine.models.decoder import Decoder
from engine.models.tokenizer import Detokenizer, Tokenizer, load_tokenizer
from engine.models.weights import build_model

__all__ = [
    "Decoder",
    "Detokenizer",
    "ModelConfig",
    "Tokenizer",
    "build_model",
    "load_model_config",
    "load_tokenizer",
]
