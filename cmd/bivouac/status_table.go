package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/cluster"
)

// print writes the status for people.
func (s clusterStatus) print(w io.Writer, now time.Time) error {
	st := s.Status
	leader := "no leader is known"
	if st.Leader != "" {
		leader = st.Leader + " leads"
	}
	if _, err := fmt.Fprintf(w, "%s in term %d, protocol version %d; seen by %s, which has applied %d of %d entries\n\n",
		leader, st.Term, st.ProtocolVersion, st.Node, st.AppliedIndex, st.CommitIndex); err != nil {
		return err
	}
	rows := make([][]string, len(s.Members))
	for i, m := range s.Members {
		rows[i] = statusRow(m)
	}
	heading := []string{
		"NODE",
		"ROLE",
		"STATE",
		"VERSION",
		"PROTOCOL",
		"LAG",
		"CONTACT",
		"CLOCK",
		"DISK",
		"CERT",
		"SECRET ID",
		"NOMAD",
		"VAULT",
	}
	if err := printTable(w, heading, rows); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nSandboxes: %s\n", sandboxCounts(st.Sandboxes))
	hold := "none"
	if st.Hold != nil {
		hold = fmt.Sprintf("since %s, for %s (bivouac operator hold status)",
			formatTime(st.Hold.Since.Time), now.Sub(st.Hold.Since.Time).Round(time.Second))
	}
	fmt.Fprintf(w, "Hold:      %s\n", hold)
	for _, part := range []struct {
		title string
		lines []string
	}{{"Wrong", s.Problems}, {"Notices", s.Notices}} {
		if len(part.lines) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s:\n", part.title)
		for _, line := range part.lines {
			fmt.Fprintf(w, "  - %s\n", printable(line))
		}
	}
	if len(s.Problems) > 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "\nNothing is wrong.\n")
	return err
}

// statusRow is a node's row; what it does not say is empty.
func statusRow(m cluster.Member) []string {
	state, protocol, lag, contact := "answers", "", "", ""
	switch {
	case m.Error != "":
		state = "silent"
	case m.Report == nil:
	case m.Report.Ready:
		state = "ready"
	default:
		state = "not ready"
	}
	if m.KnownVersion > 0 {
		protocol = strconv.Itoa(m.KnownVersion)
	}
	if m.Lag != nil {
		lag = strconv.FormatUint(*m.Lag, 10)
	}
	if m.LastContact != nil {
		contact = milliseconds(*m.LastContact).Round(100 * time.Millisecond).String()
	}
	row := []string{m.Name, m.Role, state, "", protocol, lag, contact, clockText(m), "", "", "", "", ""}
	if r := m.Report; r != nil {
		row[3], row[8], row[9] = r.Version, diskText(r.Disks), certificateText(r.Certificates)
		row[10] = secretIDText(r, time.Now())
		row[11], row[12] = serviceText(r, cluster.ServiceNomad), serviceText(r, cluster.ServiceVault)
	}
	return row
}

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// clockText is by how much a clock is ahead, with the bound of the error.
func clockText(m cluster.Member) string {
	if m.ClockAhead == nil || m.ClockError == nil {
		return ""
	}
	ahead, bound := milliseconds(*m.ClockAhead), milliseconds(*m.ClockError)
	if ahead.Abs() <= bound {
		return "±" + bound.String()
	}
	return fmt.Sprintf("%+.3fs", ahead.Seconds())
}

// diskText is the room of the fullest file system.
func diskText(disks []cluster.Disk) string {
	text, least := "", 2.0
	for _, d := range disks {
		if d.Error != "" {
			return "unknown"
		}
		if free := float64(d.Free) / float64(max(d.Size, 1)); free < least {
			least, text = free, fmt.Sprintf("%s (%.0f%%)", sizeText(d.Free), 100*free)
		}
	}
	return text
}

// sizeText is a size in the unit that fits.
func sizeText(bytes int64) string {
	const units = "KMGTP"
	if bytes < 1024 {
		return strconv.FormatInt(bytes, 10) + " B"
	}
	size, i := float64(bytes)/1024, 0
	for ; size >= 1000 && i < len(units)-1; i++ {
		size /= 1024
	}
	return fmt.Sprintf("%.3g %ciB", size, units[i])
}

// certificateText is the days left of the first certificate to end.
func certificateText(list []cluster.Certificate) string {
	if len(list) == 0 {
		return ""
	}
	first := list[0]
	for _, c := range list {
		if c.Expires.Before(first.Expires) {
			first = c
		}
	}
	if first.DaysLeft < 0 {
		return "expired"
	}
	return strconv.Itoa(first.DaysLeft) + "d"
}

// secretIDText is the days left of the secret id in Vault.
func secretIDText(r *cluster.Report, now time.Time) string {
	for _, s := range r.Services {
		if end := s.CredentialExpires; end != nil && end.After(now) {
			return strconv.Itoa(daysLeft(*end, now)) + "d"
		} else if end != nil {
			return "expired"
		}
	}
	return ""
}

// serviceText is Nomad or Vault as a node sees it.
func serviceText(r *cluster.Report, name string) string {
	for _, s := range r.Services {
		switch {
		case s.Name != name:
		case s.Sealed:
			return "sealed"
		case !s.Reachable:
			return "unreachable"
		case s.Error != "":
			return "refused"
		default:
			return "ok"
		}
	}
	return ""
}

// sandboxCounts lists the states in the order of a sandbox's life.
func sandboxCounts(counts map[string]int) string {
	var parts []string
	for _, state := range []string{"STARTING", "RUNNING", "PAUSED", "ERROR", "DELETING"} {
		parts = append(parts, fmt.Sprintf("%d %s", counts[state], state))
	}
	return strings.Join(parts, ", ")
}
