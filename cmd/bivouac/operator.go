package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/httpapi/wire"
)

// bootstrapRetry is the pause between two attempts while the cluster has no leader.
const bootstrapRetry = 200 * time.Millisecond

// bootstrapTimeout bounds `bivouac keys bootstrap`.
const bootstrapTimeout = time.Minute

func (p *program) operatorCommand() *cobra.Command {
	return groupCommand("operator", "Operate a cluster", p.operatorStatusCommand(), p.membersCommand("members"),
		p.transferCommand("transfer-leader"), p.removeCommand("remove"), p.replaceCommand(), p.allowCommand(),
		p.protocolCommand(), p.raftCommand(), p.snapshotCommand(),
		p.operatorRecoverCommand(), p.holdCommand(), p.debugCommand(), p.orphansCommand(), p.copiesCommand(),
		p.adoptCommand(), p.recordsCommand(), p.acceptWorkspaceCommand(), p.clientCommand(), p.operatorUsageCommand(),
		p.doctorCommand())
}

// peerClient makes a client of the peer port of the node with this configuration. It uses that
// node's certificate.
func peerClient(cfg Config) (*cluster.PeerClient, error) {
	return cluster.NewPeerClient(cfg.Peer.tls(), cmp.Or(cfg.Peer.Advertise, cfg.Peer.Address))
}

func (p *program) operatorStatusCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what a node knows of the cluster",
		Example: `  bivouac operator status
  bivouac operator status --address https://n2.example.org:8440 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var status wire.Status
			if err := p.waiting(cmd, c, http.MethodGet, "/api/v1/operator/status", nil, &status); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, status)
			}
			return printStatus(p.stdout, status)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func printStatus(w io.Writer, s wire.Status) error {
	ready := "ready"
	if s.Reason != nil {
		ready = "not ready: " + *s.Reason
	}
	_, err := fmt.Fprintf(w, "%s is %s in term %d, %s; commit index %d, applied %d; protocol version %d\n\n",
		s.Node, s.State, s.Term, ready, s.CommitIndex, s.AppliedIndex, s.ProtocolVersion)
	if err != nil {
		return err
	}
	if err := printTrouble(w, s); err != nil {
		return err
	}
	rows := make([][]string, len(s.Servers))
	for i, server := range s.Servers {
		rows[i] = []string{server.Name, server.Address, yesNo(server.Voter), yesNo(server.ID == s.LeaderID &&
			s.LeaderID != ""), server.ID}
	}
	return printTable(w, []string{"NODE", "PEER ADDRESS", "VOTER", "LEADER", "ID"}, rows)
}

// printTrouble prints why the leader does not act, and where a file differs.
func printTrouble(w io.Writer, s wire.Status) error {
	var lines []string
	if h := s.Hold; h != nil {
		lines = append(lines, fmt.Sprintf("HOLD since %s: the leader does nothing of its own accord (%d findings); "+
			"see \"bivouac operator hold status\"",
			formatTime(h.Since.Time), len(h.Findings)+h.More))
	}
	for _, r := range s.Removals {
		if r.BrakedAt != nil && r.Limit != nil {
			lines = append(lines,
				fmt.Sprintf("removals wait: %d of kind %s in the last hour, the limit was %d", r.Removed, r.Kind, *r.Limit))
		}
	}
	if st := s.Bytes; st.Limit > 0 && st.Used >= st.Limit/10*9 {
		lines = append(lines, fmt.Sprintf("the state has %d bytes and takes %d; the user with most has %d: "+
			"see \"bivouac users list\"",
			st.Used, st.Limit, st.LargestUser))
	}
	if s.KnownVersion > s.ProtocolVersion {
		lines = append(lines, fmt.Sprintf("protocol version %d is in force and this node knows %d: "+
			"when the upgrade shall stay, \"bivouac operator protocol set %d\"",
			s.ProtocolVersion, s.KnownVersion, s.KnownVersion))
	}
	for _, d := range s.Differs {
		lines = append(lines, "this node's file differs from what is in force: "+d)
	}
	if ids := s.SpecsWithoutIsolation; len(ids) > 0 {
		lines = append(lines, "sandboxes of these specs are not isolated from their machine: "+strings.Join(ids, ", "))
	}
	if len(lines) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "%s\n\n", strings.Join(lines, "\n"))
	return err
}
