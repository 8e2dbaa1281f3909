# want: the block "spec" is required
