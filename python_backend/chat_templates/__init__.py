"""Chat templates are programs that come with models. This package runs them under bounds; the
server, the gateway and the client each install it."""

from chat_templates.process import Bounds, TemplateProcess
