"""A model made ready to run: what each target became, and the contexts that threads run in."""

from engine.plan.build import build_plan
from engine.plan.contexts import ContextPool
from engine.plan.plan import Plan

__all__ = ["ContextPool", "Plan", "build_plan"]
