package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

func (d *disaster) ctx() context.Context { return context.Background() }

// knows reports whether the program has the operator command.
func (d *disaster) knows(t *testing.T, command string) bool {
	t.Helper()
	return strings.Contains(d.Run(t, "operator", "--help"), "\n  "+command+" ")
}

// adopt accepts a copied disk, as an operator does.
func (d *disaster) adopt(t *testing.T, n *testcluster.Node) {
	t.Helper()
	if !d.knows(t, "adopt-disk") {
		return
	}
	args := []string{"operator", "adopt-disk", "--config", n.File()}
	if strings.Contains(d.Run(t, "operator", "adopt-disk", "--help"), "--yes") {
		args = append(args, "--yes")
	}
	d.Run(t, args...)
}

// findings returns the reasons of the cluster's hold, "no hold" without one.
func (d *disaster) findings(t *testing.T) string {
	t.Helper()
	var body struct {
		Hold *struct {
			Findings []struct{ Kind, Store, ID, Detail string }
		}
	}
	if err := d.Leader(t).Get("/api/v1/operator/hold", &body); err != nil {
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

// holds waits until every node reports the hold, and returns its reasons.
func (d *disaster) holds(t *testing.T) string {
	t.Helper()
	err := testcluster.Await(quiet, func() error {
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
