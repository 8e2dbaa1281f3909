package main

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi"
)

// reading says when a changed setting of the file comes into force.
type reading int

const (
	// atStart: with the next start of the node.
	atStart reading = iota
	// atReload: at SIGHUP.
	atReload
	// never: it seeds a cluster that has none, and is the cluster's from then on.
	never
)

// readingOf says when the setting of that name comes into force.
func readingOf(name string) reading {
	switch name {
	case "log.level", "http.drain_delay", "http.drain_timeout",
		"limits.body_size", "limits.snapshot_size", "limits.rate_per_second",
		"limits.connections", "limits.connections_per_address", "limits.trusted_proxies":
		return atReload
	}
	if isClusters(name) {
		return never
	}
	return atStart
}

// settings are the members of c by their names in the file. The values can be set.
func (c *Config) settings() iter.Seq2[string, reflect.Value] {
	return func(yield func(string, reflect.Value) bool) { walk("", reflect.ValueOf(c).Elem(), yield) }
}

// walk visits the members of a block. Policies and limits count as one member each.
func walk(prefix string, block reflect.Value, yield func(string, reflect.Value) bool) bool {
	for i := range block.NumField() {
		member, name := block.Field(i), prefix+block.Type().Field(i).Tag.Get("hcl")
		if name == prefix+"-" {
			continue
		}
		switch member.Interface().(type) {
		case fsm.Policy, fsm.Limits:
		default:
			if member.Kind() == reflect.Struct {
				if !walk(name+".", member, yield) {
					return false
				}
				continue
			}
		}
		if !yield(name, member) {
			return false
		}
	}
	return true
}

// live is what a node takes from its file at SIGHUP.
type live struct {
	level      slog.Level
	drainDelay time.Duration
	api        httpapi.Reloadable
}

func (c Config) live() (live, error) {
	api, err := c.apiConfig()
	return live{level: logLevel(c.Log.Level), drainDelay: c.HTTP.DrainDelay, api: api.Reloadable()}, err
}

// reloaded says what became of the settings that differ from those the node runs with, by name.
type reloaded struct{ applied, restart, cluster []string }

// adopt makes the settings of next that a running node takes those of c.
func (c *Config) adopt(next *Config) (changes reloaded) {
	wanted := map[string]reflect.Value{}
	for name, value := range next.settings() {
		wanted[name] = value
	}
	for name, has := range c.settings() {
		wants := wanted[name]
		if reflect.DeepEqual(has.Interface(), wants.Interface()) {
			continue
		}
		switch readingOf(name) {
		case atReload:
			changes.applied = append(changes.applied, fmt.Sprintf("%s = %v (was %v)", name, wants.Interface(), has.Interface()))
			has.Set(wants)
		case never:
			changes.cluster = append(changes.cluster, name)
		default:
			changes.restart = append(changes.restart, name)
		}
	}
	return changes
}

// reloader reads a node's file again.
type reloader struct {
	path string
	// running is what the node runs with.
	running Config
	level   *slog.LevelVar
	node    *app
	log     *slog.Logger
}

// run reads the file at each signal until ctx ends.
func (r *reloader) run(ctx context.Context, signal <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signal:
		}
		r.node.systemd.reloading()
		if err := r.reload(); err != nil {
			r.log.Error("the configuration is not read again: the old one stays in force", "path", r.path, "error", err)
		}
		r.node.systemd.ready()
	}
}

// reload applies what can be applied and names the rest. A file with mistakes changes nothing.
func (r *reloader) reload() error {
	next, err := loadConfig(r.path)
	if err != nil {
		return err
	}
	running := r.running
	changes := running.adopt(&next)
	now, err := running.live()
	if err != nil {
		return err
	}
	if err := r.node.reload(now); err != nil {
		return err
	}
	r.level.Set(now.level)
	r.running = running
	r.log.Info("configuration read again", "path", r.path, "settings", strings.Join(changes.applied, ", "))
	if len(changes.restart) > 0 {
		r.log.Warn("changed settings need a restart of this node", "path", r.path, "settings",
			strings.Join(changes.restart, ", "))
	}
	if len(changes.cluster) > 0 {
		r.log.Warn("changed settings are the cluster's and are ignored: bivouac config set puts them in force", "path",
			r.path, "settings", strings.Join(changes.cluster, ", "))
	}
	return nil
}

// reload makes the running node take those settings.
func (a *app) reload(now live) error {
	if err := a.api.Reload(now.api); err != nil {
		return err
	}
	a.drainDelay.Store(int64(now.drainDelay))
	if a.systemd != nil {
		a.systemd.stopping.Store(int64(stoppingTime(now.drainDelay, now.api.DrainTimeout)))
	}
	return nil
}

// stoppingTime is how long a stop may take.
func stoppingTime(drainDelay, drainTimeout time.Duration) time.Duration {
	return drainDelay + drainTimeout + 2*stopGrace
}
