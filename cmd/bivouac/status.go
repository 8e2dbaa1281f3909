package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

const (
	// statusTimeout bounds one picture. The asked node waits a second for the others.
	statusTimeout = 10 * time.Second
	// exitWrong is the exit code of `bivouac status` where something is wrong, as with vault status.
	exitWrong = 2
)

func (p *program) statusCommand() *cobra.Command {
	var api apiFlags
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the cluster, and what is wrong with it",
		Long: `Show the cluster as one node sees it: the nodes, Nomad, Vault, the sandboxes, a hold,
and what is wrong in words. The node asks the others, and waits for them for a second.
It answers without a leader too.

LAG is how many log entries a node lacks, CONTACT how long ago the leader heard it,
CLOCK by how much its clock is ahead, DISK what is left on its fullest file system,
CERT the days left of its first certificate to end, SECRET ID those of its
secret id in Vault.

The exit code is 0 when nothing is wrong, 1 when the node can't be asked or refuses, and 2
when something is wrong. A notice does not change it. With --watch the picture is
drawn again until an interrupt, which is 0; with --json each is a line.`,
		Example: `  bivouac status
  bivouac status --watch
  bivouac status --json --address https://n2.example.org:8440`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return usagef("--interval must be at least 100ms, is %s", interval)
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if watch {
				return p.watchStatus(cmd.Context(), c, interval, api.asJSON)
			}
			var s clusterStatus
			err = withProgress(cmd.Context(), p.stderr, "waiting for "+c.Address, func(ctx context.Context) (err error) {
				s, err = readStatus(ctx, c)
				return err
			})
			if err != nil {
				return err
			}
			if api.asJSON {
				err = printJSON(p.stdout, s)
			} else {
				err = s.print(p.stdout, time.Now())
			}
			if err == nil && len(s.Problems) > 0 {
				return exitStatus(exitWrong)
			}
			return err
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "draw it again until an interrupt")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "with --watch: the pause between two pictures")
	return cmd
}

// clusterStatus is what `bivouac status --json` prints.
type clusterStatus struct {
	// Address is the asked node's.
	Address string `json:"address"`
	Healthy bool   `json:"healthy"`
	// Problems say what is wrong, Notices what an operator may want to know.
	Problems []string         `json:"problems"`
	Notices  []string         `json:"notices"`
	Status   wire.Status      `json:"status"`
	Members  []cluster.Member `json:"members"`
}

// readStatus asks one node for its status and its members. Only the former must succeed.
func readStatus(ctx context.Context, c *client.Client) (clusterStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s := clusterStatus{Address: c.Address}
	var page wire.Page[cluster.Member]
	var statusErr, membersErr error
	var wg sync.WaitGroup
	wg.Go(func() { statusErr = c.Call(ctx, http.MethodGet, "/api/v1/operator/status", nil, &s.Status) })
	// Stale: this must not wait for a leader.
	wg.Go(func() { membersErr = c.Call(ctx, http.MethodGet, operatorPath+"members?stale=true", nil, &page) })
	wg.Wait()
	if statusErr != nil {
		return s, statusErr
	}
	s.Members = append([]cluster.Member{}, page.Items...)
	if membersErr != nil {
		s.Members = unaskedMembers(s.Status, membersErr)
	}
	s.judge()
	return s, nil
}

// unaskedMembers is what the asked node's status alone says of the members.
func unaskedMembers(status wire.Status, err error) []cluster.Member {
	members := make([]cluster.Member, len(status.Servers))
	for i, server := range status.Servers {
		m := cluster.Member{Server: server, Role: cluster.RoleNonvoter}
		switch {
		case server.ID == status.LeaderID:
			m.Role = cluster.RoleLeader
		case server.Voter:
			m.Role = cluster.RoleVoter
		}
		if server.ID == status.ID {
			m.State, m.Report = status.State, status.Report
			m.KnownVersion, m.AppliedIndex = status.KnownVersion, status.AppliedIndex
		} else {
			m.Error = "not asked: " + err.Error()
		}
		members[i] = m
	}
	return members
}

// watchStatus prints one picture after the other until ctx ends. On a terminal each replaces the
// one before.
func (p *program) watchStatus(ctx context.Context, c *client.Client, interval time.Duration, asJSON bool) error {
	_, redraw := isTerminal(p.stdout)
	redraw = redraw && !asJSON
	for {
		s, err := readStatus(ctx, c)
		if ctx.Err() != nil {
			return nil
		}
		picture, err := s.picture(err, time.Now(), asJSON)
		if err != nil {
			return err
		}
		if redraw { // home, each line cleared to its end, then what is below
			picture = append([]byte(ansi.CursorHomePosition),
				bytes.ReplaceAll(picture, []byte("\n"), []byte(ansi.EraseLineRight+"\n"))...)
			picture = append(picture, ansi.EraseScreenBelow...)
		} else if !asJSON {
			picture = append(picture, '\n')
		}
		if _, err := p.stdout.Write(picture); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// picture is one picture of --watch. failed says why there is nothing to show.
func (s clusterStatus) picture(failed error, now time.Time, asJSON bool) ([]byte, error) {
	if asJSON {
		var v any = s
		if failed != nil {
			v = map[string]string{"address": s.Address, "error": failed.Error()}
		}
		line, err := json.Marshal(v)
		return append(line, '\n'), err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s  %s\n\n", formatTime(now), s.Address)
	if failed != nil {
		fmt.Fprintf(&b, "%s\n", printable(failed.Error()))
		return b.Bytes(), nil
	}
	err := s.print(&b, now)
	return b.Bytes(), err
}
