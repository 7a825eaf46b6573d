"""Makes the ops available in other systems. Each module needs the packages of its system, so that
nothing imports it by default."""
