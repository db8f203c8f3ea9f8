"""A model made ready to run: what each target became, and the contexts that threads run in."""

from engine.plan.build import build_plan
from engine.plan.contexts import ContextPool
from engine.plan.options import BuildOptions
from engine.plan.plan import Plan
from engine.plan.targets import Targets

__all__ = ["BuildOptions", "ContextPool", "Plan", "Targets", "build_plan"]
