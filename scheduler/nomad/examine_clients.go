package nomad

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
)

// oldestMinor is Nomad 1.10, the first with dynamic host volumes.
const oldestMinor = 10

// servers checks the version of Nomad's servers.
func (e *examination) servers(ctx context.Context) {
	var members *api.ServerMembers
	err := e.ask(ctx, func(ctx context.Context) (err error) {
		members, err = e.r.client.Agent().MembersOpts(query(ctx))
		return err
	})
	if err != nil {
		e.add(CheckWarn, "nomad.version", "the servers' versions are not known: %s", err)
		return
	}
	versions := map[string]bool{}
	for _, m := range members.Members {
		versions[m.Tags["build"]] = true
	}
	list := slices.Sorted(maps.Keys(versions))
	for _, v := range list {
		if tooOld(v) {
			e.add(CheckFail, "nomad.version", "a server has %s: upgrade Nomad to 1.%d or newer", v, oldestMinor)
			return
		}
	}
	e.add(CheckOK, "nomad.version", "servers: %s", strings.Join(list, ", "))
}

// tooOld reports whether a version is below 1.10. A text that is none is not.
func tooOld(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	return parts[0] == "0" || parts[0] == "1" && len(parts[1]) < 2
}

// clients checks the clients that may run sandboxes.
func (e *examination) clients(ctx context.Context, drivers []fsm.Driver) {
	var stubs []*api.NodeListStub
	err := e.ask(ctx, func(ctx context.Context) (err error) {
		stubs, _, err = e.r.client.Nodes().List(query(ctx))
		return err
	})
	if err != nil {
		return // the permission has a line
	}
	pool := cmp.Or(e.r.cfg.NodePool, api.NodePoolDefault)
	var usable []*api.NodeListStub
	for _, s := range stubs {
		if s.Status == api.NodeStatusReady && s.SchedulingEligibility == api.NodeSchedulingEligible && !s.Drain &&
			(pool == api.NodePoolAll || s.NodePool == pool) &&
			(len(e.r.cfg.Datacenters) == 0 || slices.Contains(e.r.cfg.Datacenters, s.Datacenter)) {
			usable = append(usable, s)
		}
	}
	if len(usable) == 0 {
		e.add(CheckFail, "nomad.clients",
			"none of %d clients takes jobs in the node pool %s: no sandbox starts; see \"nomad node status\", "+
				"and nomad { node_pool datacenters }", len(stubs), pool)
		return
	}
	e.add(CheckOK, "nomad.clients", "%d of %d take jobs in the node pool %s", len(usable), len(stubs), pool)
	e.drivers(usable, drivers)
	e.plugin(ctx, usable)
}

// drivers checks that some client has each driver. Where specs are not known it lists what there is.
func (e *examination) drivers(usable []*api.NodeListStub, needed []fsm.Driver) {
	healthy := map[fsm.Driver]int{}
	for _, s := range usable {
		for name, d := range s.Drivers {
			if d != nil && d.Healthy {
				healthy[fsm.Driver(name)]++
			}
		}
	}
	if needed == nil {
		var list []string
		for _, d := range slices.Sorted(maps.Keys(healthy)) {
			list = append(list, string(d))
		}
		e.add(CheckOK, "nomad.drivers", "healthy: %s; which ones specs need is not known without a node's answer",
			strings.Join(list, ", "))
		return
	}
	for _, d := range needed {
		switch n := healthy[d]; {
		case n == 0:
			e.add(CheckFail, "nomad.drivers",
				"no client has a healthy driver %s, which a spec needs: see \"nomad node status -verbose\"", d)
		case n < len(usable):
			e.add(CheckWarn, "nomad.drivers", "%d of %d clients have a healthy driver %s, which a spec needs", n, len(usable), d)
		default:
			e.add(CheckOK, "nomad.drivers", "%s on every client", d)
		}
	}
}

// mostAsked bounds how many clients are asked for their attributes.
const mostAsked = 50

// plugin checks the volume plugin and the host network.
func (e *examination) plugin(ctx context.Context, usable []*api.NodeListStub) {
	asked, with, network := 0, 0, 0
	for _, s := range usable[:min(len(usable), mostAsked)] {
		var node *api.Node
		if e.ask(ctx, func(ctx context.Context) (err error) {
			node, _, err = e.r.client.Nodes().Info(s.ID, query(ctx))
			return err
		}) != nil {
			continue
		}
		asked++
		if node.Attributes["plugins.host_volume."+e.r.cfg.VolumePlugin+".version"] != "" {
			with++
		}
		if _, has := node.HostNetworks[e.r.cfg.HostNetwork]; has {
			network++
		}
	}
	e.share("nomad.volume_plugin", "the volume plugin "+e.r.cfg.VolumePlugin,
		"workspaces can't be made there; see deploy/nomad/client.hcl", with, asked)
	if e.r.cfg.HostNetwork != "" {
		e.share("nomad.host_network", "the host_network "+e.r.cfg.HostNetwork,
			"sandboxes have no ports there; see deploy/nomad/client.hcl", network, asked)
	}
}

// share says how many of the asked clients have what every one needs.
func (e *examination) share(subject, what, without string, with, asked int) {
	switch with {
	case asked:
		e.add(CheckOK, subject, "%s is on every client", what)
	case 0:
		e.add(CheckFail, subject, "no client has %s: %s", what, without)
	default:
		e.add(CheckWarn, subject, "%d of %d clients have %s: %s", with, asked, what, without)
	}
}
