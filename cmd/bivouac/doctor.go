package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
	"bivouac.dev/bivouac/scheduler/nomad"
	"bivouac.dev/bivouac/secrets"
)

// doctorTimeout bounds what is asked over the network.
const doctorTimeout = time.Minute

func (p *program) doctorCommand() *cobra.Command {
	var api apiFlags
	var configFile string
	cmd := &cobra.Command{
		Use:   "doctor [--config FILE]",
		Short: "Check a node's file and machine, Nomad, Vault and the cluster",
		Long: `Check what a cluster needs, and say what to do. Run it on a node's machine as the
node's user. Each line is ok, warn or fail; the exit code is 1 if one failed.

With --config it checks what "bivouac server --check" does, and the disk (it writes
and syncs a small file in data_dir), Nomad and Vault with the node's own token and
AppRole: whether they answer, their versions, each permission that is needed, the
clients, their drivers and the volume plugin. It changes nothing in them; it logs in
to Vault once and revokes the token.

With an operator's key it asks a node (by default the file's own) for the cluster:
who answers, clocks, disks and certificates of all nodes, and where their files and
this one differ from what is in force, and asks each server of llm { servers } from
this machine, without a key. Without --config it does only that.`,
		Example: `  bivouac operator doctor --config /etc/bivouac/node.hcl
  bivouac operator doctor --json --address https://n2.example.org:8440`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var cfg *Config
			if configFile != "" {
				read, err := loadConfig(configFile)
				if err != nil {
					return err
				}
				cfg = &read
				if api.address == "" && p.getenv("BIVOUAC_ADDR") == "" {
					api.address = ownAddress(read.HTTP)
				}
			}
			c, err := p.client(&api)
			if err != nil && cfg == nil {
				return err
			}
			var found []finding
			err = withProgress(cmd.Context(), p.stderr, "asking", func(ctx context.Context) error {
				found = diagnose(ctx, cfg, configFile, c, err, time.Now)
				return nil
			})
			if err != nil {
				return err
			}
			return p.printFindings(found, api.asJSON)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().StringVar(&configFile, "config", "", "the configuration of the node on this machine")
	return cmd
}

// ownAddress is the URL of the node with this listener, from its own machine.
func ownAddress(c HTTPConfig) string {
	host, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if c.CertFile != "" {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// diagnose makes all checks. cfg is nil without a configuration, c nil with noClient's reason. clock
// is this machine's.
func diagnose(
	ctx context.Context,
	cfg *Config,
	configFile string,
	c *client.Client,
	noClient error,
	clock func() time.Time,
) []finding {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	var local, nomadLines, vaultLines []finding
	var wg sync.WaitGroup
	theirs := &clusterFacts{}
	if c != nil {
		theirs = askCluster(ctx, c, clock)
	}
	if cfg != nil {
		wg.Go(func() {
			i := &inspection{now: clock(), endedFails: true}
			i.all(*cfg, configFile)
			i.disk("data_dir", cfg.DataDir, true)
			if cfg.Backup.Dir != "" {
				i.disk("backup.dir", cfg.Backup.Dir, false)
			}
			local = i.found
		})
		wg.Go(func() { nomadLines = examineNomad(ctx, *cfg, theirs.drivers) })
		wg.Go(func() { vaultLines = examineVault(ctx, *cfg) })
	}
	wg.Wait()
	i := &inspection{now: clock(), endedFails: true, found: slices.Concat(local, nomadLines, vaultLines)}
	switch {
	case c == nil:
		i.add(checkWarn, "cluster", "not asked: %s", noClient)
	case theirs.err != nil:
		i.add(checkFail, "cluster", "%s; ask another node with --address, or trust its CA with --ca-file", theirs.err)
	default:
		i.cluster(theirs)
		if theirs.config != nil {
			i.found = append(i.found, examineModels(ctx, theirs.config.LLM.Servers)...)
		}
		if cfg != nil {
			i.ownFile(*cfg, theirs)
		}
	}
	return i.found
}

// examineNomad asks Nomad as the node does.
func examineNomad(ctx context.Context, cfg Config, drivers []fsm.Driver) (found []finding) {
	runner, err := nomad.New(cfg.nomadConfig(slog.New(slog.DiscardHandler), prometheus.NewRegistry()))
	if err != nil {
		return []finding{{checkFail, "nomad", err.Error()}}
	}
	defer runner.Close()
	for _, check := range runner.Examine(ctx, drivers) {
		found = append(found, finding(check))
	}
	return found
}

// examineVault asks Vault as the node does.
func examineVault(ctx context.Context, cfg Config) (found []finding) {
	vault, err := secrets.NewVault(cfg.vaultConfig(slog.New(slog.DiscardHandler), prometheus.NewRegistry()))
	if err != nil {
		return []finding{{checkFail, "vault", err.Error()}}
	}
	sign := ""
	if cfg.Peer.PKIRole != "" {
		sign = strings.Trim(cfg.Peer.PKIMount, "/") + "/sign/" + cfg.Peer.PKIRole
	}
	for _, check := range vault.Examine(ctx, sign) {
		found = append(found, finding(check))
	}
	return found
}

// clusterFacts is what a node says of the cluster.
type clusterFacts struct {
	clusterStatus
	err error
	// drivers are those of the specs, sorted; nil where they are not known.
	drivers []fsm.Driver
	// config is the cluster's configuration, nil where it is not known. Without shared each node's
	// git and cors are its file's; without models there is no llm.
	config         *fsm.Installation
	shared, models bool
	// ahead is by how much the asked node's clock is ahead of this machine's, give or take bound.
	ahead, bound time.Duration
}

// askCluster asks one node.
func askCluster(ctx context.Context, c *client.Client, clock func() time.Time) *clusterFacts {
	f := &clusterFacts{}
	if f.clusterStatus, f.err = readStatus(ctx, c); f.err != nil {
		return f
	}
	begin := clock()
	response, err := c.Send(ctx, http.MethodGet, "/alive", nil)
	took := clock().Sub(begin)
	f.bound = -1
	if at, bad := http.ParseTime(response.Header.Get("Date")); err == nil && bad == nil {
		// The header has whole seconds, cut off.
		f.ahead, f.bound = at.Add(time.Second/2).Sub(begin.Add(took/2)), took/2+time.Second/2
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var page wire.Page[wire.Spec]
	if c.Call(ctx, http.MethodGet, operatorPath+"specs?stale=true", nil, &page) == nil {
		f.drivers = []fsm.Driver{}
		for _, s := range page.Items {
			f.drivers = append(f.drivers, s.Template.Driver)
		}
		slices.Sort(f.drivers)
		f.drivers = slices.Compact(f.drivers)
	}
	var in wire.Config
	if c.Call(ctx, http.MethodGet, configPath+"?stale=true", nil, &in) == nil {
		if now, bad := in.Installation(); bad == nil {
			f.config, f.shared, f.models = &now, in.Git != nil && in.CORS != nil, in.LLM != nil
		}
	}
	return f
}

// cluster judges each node, and the state.
func (i *inspection) cluster(f *clusterFacts) {
	if f.Status.Leader == "" {
		i.add(checkFail, "cluster.leader", "no leader is known: start the nodes that are away (bivouac runbook members)")
	} else {
		i.add(checkOK, "cluster.leader", "%s, in term %d, by %s", f.Status.Leader, f.Status.Term, f.Address)
	}
	switch sure := f.ahead.Abs() - f.bound; {
	case f.bound < 0:
		i.add(checkWarn, "clock", "%s does not tell the time", f.Address)
	case sure > clockWarning:
		i.clock("clock", "this machine's clock, beside that of "+f.Status.Node+",", -f.ahead, f.bound)
	default:
		i.add(checkOK, "clock", "this machine's is that of %s, within %s", f.Status.Node, f.bound.Round(time.Millisecond))
	}
	for _, m := range f.Members {
		i.member(m)
	}
	var wrong, notice said
	judgeState(f.Status, &wrong, &notice)
	f.judgeBackups(i.now, &wrong, &notice)
	f.judgeVersions(&notice)
	for _, line := range slices.Concat(wrong.lines(), notice.lines()) {
		i.add(checkWarn, "cluster.state", "%s", line)
	}
}

// clock judges a clock that is off by more than clockWarning for sure.
func (i *inspection) clock(subject, whose string, ahead, bound time.Duration) {
	result := checkWarn
	if ahead.Abs()-bound > clockLimit {
		result = checkFail
	}
	i.add(result, subject, "%s is off by %s (give or take %s): synchronise it (chrony, ntpd)", whose,
		ahead.Round(time.Millisecond), bound.Round(time.Millisecond))
}

// member judges one node by its report.
func (i *inspection) member(m cluster.Member) {
	at := "node " + m.Name
	if m.Error != "" {
		i.add(checkFail, at, "it does not answer: %s; start it, or see \"bivouac runbook members\"", m.Error)
		return
	}
	if m.Report == nil {
		i.add(checkWarn, at, "its program is older and makes no report: finish the upgrade")
		return
	}
	r := m.Report
	if r.Ready {
		i.add(checkOK, at, "%s, version %s, protocol %d", m.Role, r.Version, m.KnownVersion)
	} else {
		i.add(checkFail, at, "not ready: %s", r.Reason)
	}
	if m.Lag != nil && *m.Lag > lagWarning {
		i.add(checkWarn, at+" lag", "%d log entries: see \"bivouac runbook members\"", *m.Lag)
	}
	if m.ClockAhead != nil && m.ClockError != nil {
		ahead, bound := milliseconds(*m.ClockAhead), milliseconds(*m.ClockError)
		if ahead.Abs()-bound > clockWarning {
			i.clock(at+" clock", "its clock", ahead, bound)
		} else {
			i.add(checkOK, at+" clock", "%s", clockText(m))
		}
	}
	for _, d := range r.Disks {
		if d.Error != "" {
			i.add(checkFail, at+" disk", "%s: %s", d.Name, d.Error)
			continue
		}
		i.room(at+" disk", d.Name, d.Free, d.Size, d.Name == cluster.DiskData)
	}
	for _, c := range r.Certificates {
		i.expiry(at+" certificate", c.Name, c.Expires)
	}
	for _, s := range r.Services {
		if s.CredentialLate(i.now) {
			i.add(checkWarn, at+" "+s.Name, "its secret id ends on %s (bivouac runbook secret-id)",
				formatTime(*s.CredentialExpires))
		}
		switch {
		case s.Sealed:
			i.add(checkFail, at+" "+s.Name, "sealed: unseal it")
		case s.Error != "":
			i.add(checkFail, at+" "+s.Name, "%s", s.Error)
		default:
			i.add(checkOK, at+" "+s.Name, "answers it")
		}
	}
	if len(r.Differs) == 0 {
		i.add(checkOK, at+" file", "differs from the cluster's configuration in nothing")
	}
	for _, d := range r.Differs {
		i.add(checkWarn, at+" file", "differs from what is in force: %s", d)
	}
}

// ownFile compares the file with what is in force, and with the members.
func (i *inspection) ownFile(cfg Config, f *clusterFacts) {
	if f.config != nil {
		i.seeds(cfg, f)
	}
	k := slices.IndexFunc(f.Members, func(m cluster.Member) bool { return m.Name == cfg.NodeName })
	address := cmp.Or(cfg.Peer.Advertise, cfg.Peer.Address)
	switch {
	case k < 0:
		i.add(checkWarn, "node_name", "%q is no member of the cluster yet: start it, with retry_join", cfg.NodeName)
	case f.Members[k].Address != address && isPeerAddress(address) == nil:
		i.add(checkWarn, "peer.advertise", "the members know %s at %s, the file says %s: restart it, or correct the file",
			cfg.NodeName, fmt.Sprintf("%q", f.Members[k].Address), address)
	default:
		i.add(checkOK, "node_name", "%s is a member, at %s", cfg.NodeName, f.Members[k].Address)
	}
}

// seeds compares the cluster's blocks of this file with what is in force.
func (i *inspection) seeds(cfg Config, f *clusterFacts) {
	same, now, file := true, *f.config, cfg.installation()
	if !f.shared {
		file.Git, file.CORS = now.Git, now.CORS
	}
	if !f.models {
		file.LLM = now.LLM
	}
	for _, d := range now.Differences(file) {
		if slices.Contains(cfg.Seeds, blockOf(d.Name)) {
			i.add(checkWarn, "config", "%s: the file's is ignored; delete the block, or see \"bivouac config diff\"",
				differenceText(d))
			same = false
		}
	}
	if same {
		i.add(checkOK, "config", "differs from the cluster's configuration in nothing")
	}
}
