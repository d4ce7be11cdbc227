"""How often an agent looks at MPI: at once while something happens, seldom when nothing does for long."""

from mlfs.peers.process import LONGEST_NAP_AWAITED_S, LONGEST_NAP_S, SPIN_S, LookPace


def test_an_agent_sleeps_the_longer_the_longer_nothing_happened() -> None:
    pace = LookPace()
    assert pace.nap_s(100.0, busy=True, awaited=False) == 0.0
    assert pace.nap_s(100.0 + SPIN_S / 2, busy=False, awaited=False) == 0.0
    for pause_s in (0.001, 0.01, 0.1, 0.4):
        assert 0 < pace.nap_s(100.0 + pause_s, busy=False, awaited=False) <= max(pause_s / 20, 50e-6) * 1.0001
    assert pace.nap_s(160.0, busy=False, awaited=False) == LONGEST_NAP_S
    assert pace.nap_s(160.0, busy=False, awaited=True) == LONGEST_NAP_AWAITED_S
    assert pace.nap_s(160.0, busy=True, awaited=False) == 0.0
    looks, now_s = 0, 161.0
    while now_s < 171.0:
        now_s += pace.nap_s(now_s, busy=False, awaited=False)
        looks += 1
    assert looks <= 10 * 60  # of 100 us each, as on a busy machine: well below 1 % of a core
