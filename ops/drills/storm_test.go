package drills

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
	"bivouac.dev/bivouac/ops/storm"
)

// TestStorm lets clients start, use, pause, resume and delete sandboxes, and send
// messages to them, while nodes, Nomad and Vault are killed, stopped and sealed.
// Afterwards each sandbox is what its client was told, with its file and its
// messages; Nomad and Vault hold that and nothing else. BIVOUAC_DRILL_SEED repeats a storm,
// BIVOUAC_DRILL_STORM says how long it rages.
func TestStorm(t *testing.T) {
	o := storm.Options{Actors: 4, Duration: 20 * time.Second, Seed: rand.Uint64(), Strays: true}
	if long() {
		o.Duration, o.Strays = 10*time.Minute, false
	}
	if text := os.Getenv("BIVOUAC_DRILL_STORM"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("BIVOUAC_DRILL_STORM: %v", err)
		}
		o.Duration = d
	}
	if text := os.Getenv("BIVOUAC_DRILL_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("BIVOUAC_DRILL_SEED: %v", err)
		}
		o.Seed = seed
	}
	var config string
	if !o.Strays {
		config = "unreferenced_grace = \"2m\"\ncollect_interval = \"10s\""
	}
	o.Fleet = fleet.Start(t, fleet.Options{Docker: true, Vault: config, Ledger: true})
	o.Specs = o.Fleet.Drivers()
	t.Logf("seed %d, %s", o.Seed, o.Duration)
	r := storm.Run(t, o)
	verdict := "as it should be"
	if t.Failed() {
		verdict = "FAILED"
		for _, n := range o.Fleet.Nodes {
			t.Logf("%s said last:\n%s", n.Name, fleet.Tail(n.Log, 60))
		}
	}
	t.Logf("--- verdict: storm: %s: seed %d, %s: %s", verdict, o.Seed, o.Duration, r)
}
