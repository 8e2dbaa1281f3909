package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/recovery"
)

// recoverOptions are the flags of `bivouac operator recover`.
type recoverOptions struct {
	config    string
	until     uint64
	survivors []string
	describe  bool
	yes, json bool
}

// recoverReport is what the command prints with --json.
type recoverReport struct {
	Disk recovery.Survivor `json:"disk"`
	// Furthest is the compared node with the newest log, to recover from.
	Furthest  string              `json:"furthest"`
	Recovered *recovery.Recovered `json:"recovered,omitempty"`
}

func (p *program) operatorRecoverCommand() *cobra.Command {
	var o recoverOptions
	cmd := &cobra.Command{
		Use:   "recover --config FILE",
		Short: "Make one surviving disk the cluster, when a majority is lost for good",
		Long: `Make the data directory of a node that does not run the whole cluster, when a
majority of the members is lost for good: no leader, no key and no other node is
needed. "bivouac runbook recover" has the whole procedure.

It says what the disk holds, refuses while a former member answers, asks, and
makes this node the only member, under a new id and in a new history of the
cluster. "bivouac server" then starts it; new nodes with empty data directories
join. Entries that were not committed count as committed from then on; --until
leaves out all after an index, for an entry that stops every node. The cluster
holds: it starts and stops no sandbox by itself until "bivouac operator hold
release". The disks of the other former members must never be used again.

Where several disks are left, print each with --describe --json, and give the
others' with --survivor: the one to recover from is the one that comes furthest.`,
		Example: `  bivouac operator recover --config /etc/bivouac/node.hcl --describe --json > n3.json
  bivouac operator recover --config /etc/bivouac/node.hcl --survivor n2.json
  bivouac operator recover --config /etc/bivouac/node.hcl --until 13155 --yes`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.json && !o.yes && !o.describe {
				return usagef("--json needs --yes, or --describe: there is no question in JSON")
			}
			return p.recover(cmd, o)
		},
	}
	cmd.Flags().StringVar(&o.config, "config", "", "the configuration of the node on this machine")
	cmd.Flags().Uint64Var(&o.until, "until", 0, "leave out every entry after this index")
	cmd.Flags().StringArrayVar(&o.survivors, "survivor", nil,
		"another disk that is left: what --describe --json printed there, or its data directory; may be repeated")
	cmd.Flags().BoolVar(&o.describe, "describe", false, "only say what the disk holds")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	mustRequire(cmd, "config")
	return cmd
}

// recover carries out the command.
func (p *program) recover(cmd *cobra.Command, o recoverOptions) (err error) {
	cfg, err := loadConfig(o.config)
	if err != nil {
		return err
	}
	if err := ownedByCaller(cfg.DataDir); err != nil {
		return err
	}
	release, err := lockExisting(cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	rec, err := recovery.Open(cfg.clusterConfig())
	if err != nil {
		return fmt.Errorf("opening the disk: %w", err)
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	report := recoverReport{Disk: rec.Disk()}
	if !o.json {
		if err := printSurvivor(p.stdout, report.Disk, time.Now()); err != nil {
			return err
		}
	}
	if report.Furthest, err = o.compare(report.Disk, cfg.clusterConfig()); err != nil {
		return err
	}
	if o.describe {
		if o.json {
			return printJSON(p.stdout, report.Disk)
		}
		return nil
	}
	if report.Furthest != report.Disk.Node {
		return fmt.Errorf("nothing was done: the disk of %s comes further than this one; recover from that one",
			report.Furthest)
	}
	answering, err := rec.Answering(cmd.Context())
	if err != nil {
		return err
	}
	if len(answering) > 0 {
		return fmt.Errorf("nothing was done: %s answers; a recovery is for when a majority is lost for good: "+
			"stop what is left of the cluster first, or let this node join it",
			strings.Join(answering, ", "))
	}
	err = p.confirm(o.yes,
		"Make this disk the whole cluster%s? The disks of the other former members must never be used again.",
		o.tail(report.Disk))
	if err != nil {
		return err
	}
	done, err := rec.Recover(o.until, o.detail(report.Disk))
	if err != nil {
		return err
	}
	report.Recovered = &done
	if o.json {
		return printJSON(p.stdout, report)
	}
	return printRecovered(p.stdout, done)
}

// lockExisting is lockDir for a directory that must be there.
func lockExisting(dir string) (func() error, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("the data directory can't be used: %s", oneLine(err))
	}
	return lockDir(dir)
}

// compare reads the other survivors and returns the name of the one with the newest log.
func (o recoverOptions) compare(own recovery.Survivor, cfg cluster.Config) (string, error) {
	disks := []recovery.Survivor{own}
	for _, path := range o.survivors {
		d, err := readSurvivor(path, cfg)
		if err != nil {
			return "", usagef("--survivor: %w", err)
		}
		if d.ID != own.ID {
			disks = append(disks, d)
		}
	}
	best, err := recovery.Furthest(disks)
	return best.Node, err
}

// readSurvivor reads a description file, or describes a data directory.
func readSurvivor(path string, cfg cluster.Config) (d recovery.Survivor, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return d, err
	}
	if info.IsDir() {
		release, err := lockExisting(path)
		if err != nil {
			return d, err
		}
		defer func() { err = errors.Join(err, release()) }()
		cfg.DataDir = path
		return recovery.Describe(cfg)
	}
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	if err == nil && (d.Node == "" || d.LastIndex == 0) {
		err = errors.New("it is not what --describe --json prints")
	}
	if err != nil {
		return d, fmt.Errorf("reading %s: %w", filepath.Base(path), err)
	}
	return d, nil
}

// tail says what happens to the last entries.
func (o recoverOptions) tail(d recovery.Survivor) string {
	if o.until > 0 {
		return fmt.Sprintf(", without its entries after %d (it has %d)", o.until, d.LastIndex)
	}
	return fmt.Sprintf(", and every entry up to %d committed", d.LastIndex)
}

// detail is the hold's detail.
func (o recoverOptions) detail(d recovery.Survivor) string {
	until := d.LastIndex
	if o.until > 0 {
		until = o.until
	}
	return fmt.Sprintf(
		"recovered from the disk of %s alone, up to index %d; what the lost members had beyond it is lost",
		d.Node,
		until,
	)
}

// printSurvivor prints what a disk holds.
func printSurvivor(w io.Writer, d recovery.Survivor, now time.Time) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s holds the state of node %s (%s)\n", d.Path, d.Node, d.ID)
	fmt.Fprintf(&b, "  cluster         %s, protocol version %d\n", orDash(d.Cluster), d.ProtocolVersion)
	fmt.Fprintf(&b, "  last entry      index %d of term %d", d.LastIndex, d.LastTerm)
	if !d.Written.IsZero() {
		fmt.Fprintf(&b, ", appended %s (%s ago)", formatTime(d.Written), now.Sub(d.Written).Round(time.Second))
	}
	fmt.Fprintf(&b, "\n  committed       at least up to %d; behind it nobody can tell\n", d.Committed)
	if last := max(d.CurrentTerm, d.VotedTerm); last > d.LastTerm {
		fmt.Fprintf(&b,
			"  later terms     it took part in term %d: a leader of a term after %d may have written what this disk lacks\n",
			last, d.LastTerm)
	}
	if d.Poisoned > 0 {
		fmt.Fprintf(&b,
			"  stops at        entry %d: %s\n                  --until %d leaves it out, with all that follows\n", d.Poisoned,
			d.Problem, d.Poisoned-1)
	}
	b.WriteString("\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	rows := make([][]string, len(d.Members))
	for i, m := range d.Members {
		rows[i] = []string{m.Name, m.Address, yesNo(m.Voter), m.ID}
	}
	return printTable(w, []string{"MEMBER", "PEER ADDRESS", "VOTER", "ID"}, rows)
}

func printRecovered(w io.Writer, r recovery.Recovered) error {
	left := ""
	if r.LeftOut > 0 {
		left = " (" + strconv.FormatUint(r.LeftOut, 10) + " entries left out)"
	}
	_, err := fmt.Fprintf(w, `
%s is the only member now, as %s at %s.
The state is that of index %d%s: %d sandboxes; it goes on at index %d in history %s.
%d warm pool members were dropped, %d Idempotency-Keys have an unknown outcome.

Start it with "bivouac server"; new nodes with empty data directories join it.
It holds: "bivouac operator hold status" says what would go, "hold release" ends it.
Never start a node on another former member's disk again (bivouac runbook recover).
`, r.Node, r.ID, r.Address, r.From, left, r.Sandboxes, r.Index, r.History.ID, r.Members, r.Unknown)
	return err
}
