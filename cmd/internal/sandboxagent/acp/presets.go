package acp

import (
	"maps"
	"slices"

	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// Preset is an agent's command line.
type Preset preset.Preset

// PresetByID returns the preset of an id.
func PresetByID(id string) (Preset, bool) {
	p, known := preset.ByID(id)
	return Preset(p), known
}

// merged returns the preset with what a conversation sets itself.
func (p Preset) merged(commandLine []string, args []string, env map[string]string, mode string) Preset {
	if len(commandLine) > 0 {
		p.Command, p.Args = commandLine[0], slices.Concat(commandLine[1:], args)
	} else {
		p.Args = slices.Concat(p.Args, args)
	}
	all := maps.Clone(p.Env)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, env)
	p.Env = all
	if mode != "" && mode != "auto" {
		p.SessionMode = mode
	}
	return p
}
