import threading

import pytest

from tfx_tips.callbacks.run_plan import RunPlan, current_plan, part_of

PLAN = RunPlan(epochs=3, start_step=7, total_steps=30)


def test_a_plan_holds_inside_and_not_after_also_after_an_exception():
    def break_off():
        with part_of(PLAN):
            assert current_plan() is PLAN
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert current_plan() is None


def test_an_inner_plan_gives_way_to_the_outer_one():
    inner = RunPlan(epochs=1, start_step=0, total_steps=10)
    with part_of(PLAN):
        with part_of(inner):
            assert current_plan() is inner
        assert current_plan() is PLAN


def test_another_threads_run_is_no_part_of_the_plan():
    seen = []
    with part_of(PLAN):
        thread = threading.Thread(target=lambda: seen.append(current_plan()))
        thread.start()
        thread.join()
    assert seen == [None]
