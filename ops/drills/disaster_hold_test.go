package drills

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/fleet"
)

func (d *disaster) ctx() context.Context { return context.Background() }

// knows reports whether the program has an operator's command.
func (d *disaster) knows(t *testing.T, command string) bool {
	t.Helper()
	return strings.Contains(d.Run(t, "operator", "--help"), "\n  "+command+" ")
}

// adopt says, as an operator does, that a copied disk is to be used.
func (d *disaster) adopt(t *testing.T, n *fleet.Node) {
	t.Helper()
	if !d.knows(t, "adopt-disk") {
		return
	}
	args := []string{"operator", "adopt-disk", "--config", n.Config()}
	if strings.Contains(d.Run(t, "operator", "adopt-disk", "--help"), "--yes") {
		args = append(args, "--yes")
	}
	d.Run(t, args...)
}

// findings gives what the cluster holds for, "no hold" for nothing.
func (d *disaster) findings(t *testing.T) string {
	t.Helper()
	a, err := d.Leader(t).Try(http.MethodGet, "/api/v1/operator/hold", nil)
	var body struct {
		Hold *struct {
			Findings []struct{ Kind, Store, ID, Detail string }
		}
	}
	if err == nil {
		err = a.Decode(&body)
	}
	if err != nil {
		return "no hold can be asked for: " + err.Error()
	}
	if body.Hold == nil {
		return "no hold"
	}
	var list []string
	for _, f := range body.Hold.Findings {
		list = append(list, fmt.Sprintf("%s %s %s (%s)", f.Kind, f.Store, f.ID, f.Detail))
	}
	return "held: " + strings.Join(list, "; ")
}

// holds waits until every node says that the cluster holds, and gives what for.
func (d *disaster) holds(t *testing.T) string {
	t.Helper()
	err := fleet.Await(quiet, func() error {
		for _, n := range d.Nodes {
			a, err := n.Try(http.MethodGet, "/ready", nil)
			if err != nil || a.Status != http.StatusOK || a.Header.Get("X-Bivouac-Hold") == "" {
				return errors.Join(err, fmt.Errorf("%s: /ready is %s without X-Bivouac-Hold", n.Name, a))
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("the cluster does not hold: %v", err)
	}
	return d.findings(t)
}
