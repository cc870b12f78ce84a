"""Tests of the integrations, with models, adapters and cold references built once for the whole folder."""
