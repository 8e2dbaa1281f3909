package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// checkRestore rejects what --restore can't do before anything is opened: a file that fails
// verification, and a directory whose nodes have a state. The directory's secrets, workspaces
// and API key stay: a saved state only refers to them.
func (o devOptions) checkRestore() error {
	if o.restore == "" {
		if o.keys != "" {
			return usagef("--keys says what becomes of the API keys in the file of --restore")
		}
		return nil
	}
	if err := oneOf("keep", "suspend")(o.keys); err != nil {
		return usagef("--restore needs --keys: %w", err)
	}
	for _, name := range nodeNames(o.nodes) {
		node := devLayout{o.dataDir}.node(name)
		if _, err := os.Stat(node); !errors.Is(err, fs.ErrNotExist) {
			return usagef("%s is there: --restore is for a directory without the nodes' data; "+
				"move n1, n2, ... aside first", node)
		}
	}
	f, err := os.Open(o.restore)
	if err != nil {
		return usagef("--restore: %s", oneLine(err))
	}
	defer f.Close()
	if _, _, err := snapshotfile.Load(f); err != nil {
		return usagef("--restore: %s: %w", o.restore, err)
	}
	return nil
}

// startRestored starts the first node alone and restores the file's state on it. Then it starts
// the others, which join.
func (c *devCluster) startRestored(ctx context.Context, failed chan error, o devOptions) error {
	f, err := os.Open(o.restore)
	if err != nil {
		return fmt.Errorf("restoring: %w", err)
	}
	defer f.Close()
	first := c.nodes[0]
	first.start(failed)
	alone := &devCluster{layout: c.layout, key: c.key, specs: c.specs, nodes: c.nodes[:1]}
	if err := alone.wait(ctx, failed, func(n *devNode) error { return n.app.node.Ready() }); err != nil {
		return err
	}
	if err := alone.provision(ctx); err != nil {
		return err
	}
	c.key = alone.key
	restored, err := first.app.node.Restore(ctx, f, cluster.RestoreOptions{
		SuspendKeys: o.keys == "suspend", KeepKey: first.app.store.View().APIKeyByLookup(c.key.Lookup),
	})
	if err != nil {
		return fmt.Errorf("restoring %s: %w", o.restore, err)
	}
	c.log.Warn("the state was restored from a file; the cluster holds", "index", restored.Index)
	for _, n := range c.nodes[1:] {
		n.start(failed)
	}
	return nil
}
