"""A model made ready to run: what each target became, and the contexts that threads run in."""

from engine.plan.build import build_plan
from engine.plan.compile import Plan
from engine.plan.contexts import ContextPool

__all__ = ["ContextPool", "Plan", "build_plan"]
