"""What the tests stand on: DeepSpeed trees, a pool of rank processes, tiny engines, damage to files."""
