package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/httpapi/wire"
)

const (
	// lagWarning is how many log entries a member may lack; the alert BivouacMemberLags has it too.
	lagWarning = 5000
	// roomShare and roomLeast are the room that a file system should have; BivouacDiskFills has
	// them too.
	roomShare = 0.10
	roomLeast = int64(1e9)
	// clockWarning and clockLimit bound the difference of two clocks. Above the latter of a majority a
	// leader expires nothing (cluster.Node.ClocksAgree).
	clockWarning = time.Second
	clockLimit   = time.Minute
)

// said collects sentences about nodes. Nodes with the same sentence share a line.
type said struct {
	texts []string
	nodes map[string][]string
}

func (s *said) add(node, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if s.nodes == nil {
		s.nodes = map[string][]string{}
	}
	if _, known := s.nodes[text]; !known {
		s.texts = append(s.texts, text)
	}
	if node != "" {
		s.nodes[text] = append(s.nodes[text], node)
	}
}

// lines returns what was said, in that order.
func (s *said) lines() []string {
	lines := []string{}
	for _, text := range s.texts {
		if nodes := s.nodes[text]; len(nodes) > 0 {
			text = strings.Join(nodes, ", ") + ": " + text
		}
		lines = append(lines, text)
	}
	return lines
}

// judge fills Problems, Notices and Healthy.
func (s *clusterStatus) judge() {
	var wrong, notice said
	s.judgeQuorum(&wrong, &notice)
	for _, m := range s.Members {
		judgeMember(m, &wrong, &notice)
	}
	judgeState(s.Status, &wrong, &notice)
	s.judgeBackups(time.Now(), &wrong, &notice)
	s.Problems, s.Notices = wrong.lines(), notice.lines()
	s.Healthy = len(s.Problems) == 0
}

// judgeQuorum counts the voters.
func (s *clusterStatus) judgeQuorum(wrong, notice *said) {
	voters, answer := 0, 0
	for _, m := range s.Members {
		if m.Voter {
			voters++
			if m.Error == "" {
				answer++
			}
		}
	}
	need := voters/2 + 1
	switch {
	case s.Status.LeaderID == "":
		wrong.add("", "no leader is known: nothing can be written; %d of %d voters answer, %d are needed", answer, voters,
			need)
	case voters > 1 && answer <= need && answer < voters:
		wrong.add("", "%d of %d voters answer, %d are needed: one more failure stops the cluster", answer, voters, need)
	}
	s.judgeVersions(notice)
}

// judgeVersions compares the programs.
func (s *clusterStatus) judgeVersions(notice *said) {
	least := 0
	versions := map[string]bool{}
	for _, m := range s.Members {
		if m.Report != nil {
			versions[m.Report.Version] = true
		}
		if m.Error == "" && (least == 0 || m.KnownVersion < least) {
			least = m.KnownVersion
		}
	}
	if len(versions) > 1 {
		notice.add("", "the nodes run different versions of the program: finish the upgrade")
	} else if least > s.Status.ProtocolVersion {
		notice.add("", "the cluster's protocol version is %d, and all nodes that answer know %d: "+
			"\"bivouac operator protocol set %d\" when the upgrade shall stay (bivouac runbook upgrade)",
			s.Status.ProtocolVersion, least, least)
	}
}

func judgeMember(m cluster.Member, wrong, notice *said) {
	if m.Error != "" {
		wrong.add(m.Name, "does not answer: %s", m.Error)
		return
	}
	if m.Lag != nil && *m.Lag > lagWarning {
		wrong.add(m.Name, "lags %d log entries behind (bivouac runbook members)", *m.Lag)
	}
	switch {
	case m.EventsMissing > 0:
		wrong.add(m.Name, "lacks %s of events and fetches them; until it has them it is none of a majority: "+
			"stop no other node (bivouac runbook members)", sizeText(m.EventsMissing))
	case m.EventsMissing < 0:
		notice.add(m.Name, "does not know yet whether it lacks events")
	}
	if m.EventsFull {
		wrong.add(m.Name, "its disk has no room for events: all events are refused until it has %s (bivouac runbook disk)",
			sizeText(cluster.EventsRoom))
	}
	judgeClock(m, wrong, notice)
	r := m.Report
	if r == nil {
		notice.add(m.Name, "does not report its disks, certificates and services: its program is older")
		return
	}
	if !r.Ready {
		wrong.add(m.Name, "not ready: %s", r.Reason)
	}
	for _, d := range r.Disks {
		switch {
		case d.Error != "" && d.Name == cluster.DiskBackup:
			wrong.add(m.Name, "no backup can be written: %s (bivouac runbook backup)", d.Error)
		case d.Error != "":
			wrong.add(m.Name, "the %s directory: %s (bivouac runbook disk)", d.Name, d.Error)
		case float64(d.Free) < roomShare*float64(d.Size) || d.Name == cluster.DiskData && d.Free < roomLeast:
			wrong.add(m.Name, "%s are left of %s for the %s directory (bivouac runbook disk)", sizeText(d.Free),
				sizeText(d.Size), d.Name)
		}
	}
	for _, c := range r.Certificates {
		switch {
		case c.DaysLeft < 0:
			wrong.add(m.Name, "the certificate %q expired on %s (bivouac runbook certificates)", c.Name, formatTime(c.Expires))
		case time.Duration(c.DaysLeft)*day < expiryWarning:
			wrong.add(m.Name, "the certificate %q ends on %s, in %d days (bivouac runbook certificates)", c.Name,
				formatTime(c.Expires), c.DaysLeft)
		}
	}
	judgeServices(m.Name, r, time.Now(), wrong)
	for _, d := range r.Differs {
		notice.add(m.Name, "the file differs from what is in force: %s", d)
	}
}

func judgeServices(node string, r *cluster.Report, now time.Time, wrong *said) {
	for _, s := range r.Services {
		if s.CredentialLate(now) {
			wrong.add(node, "its secret id in Vault ends on %s: the next start after that can't log in "+
				"(bivouac runbook secret-id)", formatTime(*s.CredentialExpires))
		}
		name := strings.ToUpper(s.Name[:1]) + s.Name[1:]
		switch {
		case s.Sealed:
			wrong.add(node, "%s is sealed: unseal it (bivouac runbook vault-sealed)", name)
		case !s.Reachable:
			wrong.add(node, "%s can't be reached: %s", name, s.Error)
		case s.Error != "":
			wrong.add(node, "%s refuses this node: %s", name, s.Error)
		}
	}
}

// backupsMissed is how many intervals the newest backup may be old; BivouacBackupTooOld has it too.
const backupsMissed = 3

// judgeBackups judges whether nodes make backups, and the newest. With `bivouac dev`, where there is
// no Nomad and no Vault, none are expected.
func (s *clusterStatus) judgeBackups(now time.Time, wrong, notice *said) {
	var interval float64
	var without []string
	for _, m := range s.Members {
		switch r := m.Report; {
		case r == nil || len(r.Services) == 0:
		case slices.ContainsFunc(r.Disks, func(d cluster.Disk) bool { return d.Name == cluster.DiskBackup }):
			interval = max(interval, r.BackupInterval)
		default:
			without = append(without, m.Name)
		}
	}
	if interval == 0 {
		if len(without) > 0 {
			notice.add("", "no node makes backups: set backup { dir } (bivouac runbook backup)")
		}
		return
	}
	for _, name := range without {
		notice.add(name, "makes no backups while it leads: set backup { dir } (bivouac runbook backup)")
	}
	every, b := time.Duration(interval*float64(time.Second)), s.Status.Backup
	switch age := now.Sub(b.Time); {
	case b.Failure != "":
		wrong.add("", "the last backup failed, on %s at %s: %s (bivouac runbook backup)", b.FailedNode,
			formatTime(b.FailedTime), b.Failure)
	case b.File == "":
		notice.add("", "there is no backup yet")
	case age > backupsMissed*every:
		wrong.add("", "the newest backup is %s old, and one is due every %s (bivouac runbook backup)",
			age.Round(time.Second), every)
	}
}

// judgeClock trusts a difference only as far as the call was short.
func judgeClock(m cluster.Member, wrong, notice *said) {
	if m.ClockAhead == nil || m.ClockError == nil {
		return
	}
	ahead := milliseconds(*m.ClockAhead)
	const text = "its clock is off by %s (give or take %s): synchronise it (chrony, ntpd)"
	switch sure := ahead.Abs() - milliseconds(*m.ClockError); {
	case sure > clockLimit:
		wrong.add(m.Name, text, ahead, milliseconds(*m.ClockError))
	case sure > clockWarning:
		notice.add(m.Name, text, ahead, milliseconds(*m.ClockError))
	}
}

// judgeState judges what the cluster's state says.
func judgeState(st wire.Status, wrong, notice *said) {
	if h := st.Hold; h != nil {
		wrong.add("", "HOLD since %s: the leader does nothing of its own accord (%d findings; bivouac runbook hold)",
			formatTime(h.Since.Time), len(h.Findings)+h.More)
	}
	for _, r := range st.Removals {
		if r.BrakedAt != nil && r.Limit != nil {
			wrong.add("", "removals wait: %d of kind %s in the last hour, the limit was %d (bivouac runbook orphans)",
				r.Removed, r.Kind, *r.Limit)
		}
	}
	for _, d := range st.Drains {
		if text := drainTrouble(d.DrainProgress, d.Client); text != "" {
			wrong.add("", "%s", text)
		}
	}
	if b := st.Bytes; b.Limit > 0 && b.Used >= b.Limit/10*9 {
		wrong.add("", "the state has %d bytes and takes %d; the user with most has %d (bivouac users list)", b.Used,
			b.Limit, b.LargestUser)
	}
	if ids := st.SpecsWithoutIsolation; len(ids) > 0 {
		notice.add("", "sandboxes of these specs are not isolated from their machine: %s", strings.Join(ids, ", "))
	}
	if n := st.Sandboxes["ERROR"]; n > 0 {
		notice.add("", "%d sandboxes are in ERROR (bivouac sandboxes list --all)", n)
	}
}
