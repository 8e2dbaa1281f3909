package fsm

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// benchNow is the command time of the benchmarks.
var benchNow = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

func ptr[T any](v T) *T { return &v }

// settingsBody is a settings.put of typical size.
func settingsBody() *SettingsPutBody {
	return &SettingsPutBody{
		Values: SettingsValues{
			Language: ptr("en"), Agent: ptr("CodeActAgent"), LLMModel: ptr("anthropic/claude-sonnet-4"),
			ConfirmationMode: ptr(false), EnableDefaultCondenser: true, GitUserName: ptr("Ada"),
			GitUserEmail: ptr("ada@example.org"),
		},
		LLMAPIKey: &SecretRef{Path: "users/u1/settings/llm_api_key", Version: 1},
	}
}

// BenchmarkApply measures settings.put on a store with 1,000 users, one by one and in batches. The
// command-id table is full.
func BenchmarkApply(b *testing.B) {
	for _, size := range []int{1, 64} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			s := NewStore()
			body := settingsBody()
			n := uint64(0)
			batch := make([]Entry, size)
			fill := func() {
				for i := range batch {
					n++
					at := benchNow.Add(time.Duration(n) * 100 * time.Microsecond)
					batch[i] = Entry{n, NewCommand(fmt.Sprintf("command-%016d", n), at, fmt.Sprintf("user-%d", n%1000), body)}
				}
			}
			for s.View().meta.Forgotten.IsZero() {
				fill()
				s.ApplyBatch(batch)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += size {
				fill()
				s.ApplyBatch(batch)
			}
		})
	}
}

// BenchmarkCommand measures encoding and decoding, the other half of the cost of a log entry, in both
// forms.
func BenchmarkCommand(b *testing.B) {
	cmd := NewCommand("command-0000000000000001", benchNow, "user-1", settingsBody())
	cmd.Credential = Credential{Lookup: "0123456789ab"}
	for name, encode := range map[string]func() ([]byte, error){"json": cmd.Encode, "binary": cmd.EncodeBinary} {
		b.Run("encode/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := encode(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("decode/"+name, func(b *testing.B) {
			raw, err := encode()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeCommand(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSnapshot measures writing and reading 100,000 conversations, and the part that blocks
// Apply.
func BenchmarkSnapshot(b *testing.B) {
	s := NewStore()
	var rows []*Conversation
	for i := range 100_000 {
		rows = append(rows, &Conversation{
			ID: fmt.Sprintf("%032d", i), UserID: fmt.Sprintf("user-%d", i%100), SandboxID: fmt.Sprintf("s%d", i),
			Title: ptr("Fix the README"), CreatedAt: benchNow, UpdatedAt: benchNow, AgentKind: "openhands",
		})
	}
	fillConversations(s, rows...)
	for i := range 16384 {
		s.commands.add(&commandRecord{ID: fmt.Sprintf("command-%016d", i), Time: benchNow}, benchNow)
	}
	raw := persist(b, s)
	b.Run("take", func(b *testing.B) {
		for b.Loop() {
			s.Snapshot()
		}
	})
	b.Run("persist", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			persist(b, s)
		}
	})
	b.Run("restore", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if err := NewStore().Restore(bytes.NewReader(raw)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
