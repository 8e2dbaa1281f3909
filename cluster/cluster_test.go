package cluster_test

import (
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// put is a command that stores number as the user's setting.
func put(user string, number int) fsm.Command {
	n := int64(number)
	return fsm.NewCommand(uuid.NewString(), time.Now(), user,
		&fsm.SettingsPutBody{Values: fsm.SettingsValues{MaxIterations: &n}})
}

// got is the number put stored, 0 for none.
func got(v *fsm.View, user string) int {
	if s := v.Settings(user); s != nil && s.Values.MaxIterations != nil {
		return int(*s.Values.MaxIterations)
	}
	return 0
}

// newKey is a command that counts: each time it is applied there is one key
// more.
func newKey(i int) fsm.Command {
	return fsm.NewCommand(uuid.NewString(), time.Now(), "", &fsm.APIKeyCreateBody{
		Lookup: fmt.Sprintf("k%011d", i), Hash: fmt.Sprintf("%064x", i), Name: "key", UserID: "ada",
	})
}

// histories is how many random histories a test tries: few in make test, many in make large, which
// sets BIVOUAC_DRILL=long for these tests. Each run of either draws new ones.
func histories(few, many int) int {
	if os.Getenv("BIVOUAC_DRILL") == "long" {
		return many
	}
	return few
}

func TestCluster_Forms_AndAppliesOnEveryNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		for i := range 3 {
			if _, err := c.Propose(t.Context(), i, put("ada", i+1)); err != nil {
				t.Fatalf("Propose through n%d: %v", i, err)
			}
			// The asked node has it, without asking anybody.
			v, _ := c.Node(i).View(t.Context(), cluster.Stale)
			if got(v, "ada") != i+1 {
				t.Errorf("n%d: stale view after Propose has %d, want %d", i, got(v, "ada"), i+1)
			}
			for j := range 3 {
				v, err := c.Node(j).View(t.Context(), cluster.Linearizable)
				if err != nil {
					t.Fatalf("View on n%d: %v", j, err)
				}
				if got(v, "ada") != i+1 {
					t.Errorf("n%d: linearizable view has %d, want %d", j, got(v, "ada"), i+1)
				}
			}
		}
		if id := c.Store(0).View().ClusterID(); id == "" {
			t.Error("no cluster id")
		}
		for i := range 3 {
			if err := c.Node(i).Ready(); err != nil {
				t.Errorf("n%d: Ready: %v", i, err)
			}
		}
	})
}
