"""``concurrent.futures`` over the fleet: FleetExecutor, its packed map, and ActorPool."""
