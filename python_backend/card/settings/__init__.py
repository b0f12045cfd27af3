"""The one settings file: models, speculation, cache, limits and serving.

Values come from a YAML file, then from environment variables (``CARD_LIMITS__MAX_TOKENS=256``),
and are validated together: an error names the field, its value and what is allowed.
"""

from card.settings.limits import CacheSettings, LimitSettings
from card.settings.models import (
    GUESTS,
    REPOSITORY_ROOT,
    EngineName,
    ModelSettings,
    TargetSettings,
    TensorRTSettings,
)
from card.settings.paths import in_ascii
from card.settings.reading import (
    SETTINGS_VARIABLE,
    SettingsError,
    freeze,
    load_settings,
    without_settings,
)
from card.settings.serving import LogFormat, ObservabilitySettings, ServingSettings
from card.settings.speculation import SpeculationSettings
from card.settings.whole import ENVIRONMENT_PREFIX, Role, Settings
