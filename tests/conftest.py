"""For all tests: Hypothesis without deadlines, since no test here is about time."""

from hypothesis import HealthCheck, settings

settings.register_profile("bmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bmq")
