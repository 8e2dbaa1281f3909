package fsm

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-memdb"
)

// sample is a pair of rows of one table that differ in every index, and a changed version of the
// first that moves it in every index except "id".
type sample struct{ a, b, moved any }

// samples has one entry per table.
func samples() map[string]sample {
	t0, t1, t2 := testEpoch, testEpoch.Add(time.Hour), testEpoch.Add(-time.Hour)
	return map[string]sample{
		tableUsers:    {&User{ID: "a"}, &User{ID: "b"}, &User{ID: "a", CreatedAt: t1}},
		tableAPIKeys:  {&APIKey{ID: 1, Lookup: "x"}, &APIKey{ID: 2, Lookup: "y"}, &APIKey{ID: 1, Lookup: "z"}},
		tableSettings: {&Settings{UserID: "a"}, &Settings{UserID: "b"}, &Settings{UserID: "a", UpdatedAt: t1}},
		tableProviders: {
			&Provider{UserID: "a", Type: "x"},
			&Provider{UserID: "a", Type: "y"},
			&Provider{UserID: "a", Type: "x", Host: ptr("h")},
		},
		tableCustomSecrets: {
			&CustomSecret{UserID: "a", Name: "x"},
			&CustomSecret{UserID: "a", Name: "y"},
			&CustomSecret{UserID: "a", Name: "x", Description: "d"},
		},
		tableSpecs: {&Spec{ID: "a"}, &Spec{ID: "b", Position: 1}, &Spec{ID: "a", Position: 2}},
		tableSandboxes: {
			&Sandbox{ID: "a", UserID: "u", CreatedAt: t0, KeyHash: "x", Desired: DesiredRunning},
			&Sandbox{ID: "b", Pool: "py", CreatedAt: t1, Desired: DesiredRunning},
			&Sandbox{ID: "a", UserID: "u", CreatedAt: t2, KeyHash: "z", Desired: DesiredRunning, DesiredAt: t1},
		},
		tableConversations: {
			&Conversation{ID: "a", UserID: "u", CreatedAt: t0, V0ID: "v", ParentID: ptr("p")},
			&Conversation{ID: "b", UserID: "u", CreatedAt: t1, V0ID: "w", ParentID: ptr("p")},
			&Conversation{ID: "a", UserID: "u", CreatedAt: t2, V0ID: "x", ParentID: ptr("q")},
		},
		tableStartTasks: {
			&StartTask{ID: "a", UserID: "u", ConversationID: "c", CreatedAt: t0, UpdatedAt: t0},
			&StartTask{ID: "b", UserID: "u", ConversationID: "c", CreatedAt: t1, UpdatedAt: t1, Status: StartTaskReady},
			&StartTask{ID: "a", UserID: "u", ConversationID: "d", CreatedAt: t2, UpdatedAt: t2, Status: StartTaskError},
		},
		tableClientCommands: {
			&commandRecord{ID: "a", UserID: "u", Time: t0, Result: Result{Index: 1}},
			&commandRecord{ID: "b", UserID: "u", Time: t1, Result: Result{Index: 2}},
			&commandRecord{ID: "a", UserID: "v", Time: t2, Result: Result{Index: 3}},
		},
		tableRecentStarts: {
			&recentStart{UserID: "u", Time: t0, Index: 1}, &recentStart{UserID: "u", Time: t0, Index: 2},
			&recentStart{UserID: "u", Time: t0, Index: 1},
		},
		tableOrphans: {
			&Orphan{Kind: OrphanJob, Sandbox: "a"}, &Orphan{Kind: OrphanWorkspace, Sandbox: "a"},
			&Orphan{Kind: OrphanJob, Sandbox: "a", Delete: true},
		},
		tableReplaced: {
			&replacedSecret{
				UserID:  "u",
				Path:    "p",
				Version: 1,
				Since:   t0,
			}, &replacedSecret{UserID: "u", Path: "p", Version: 2, Since: t0},
			&replacedSecret{UserID: "u", Path: "p", Version: 1, Since: t1},
		},
		tableSetups: {
			&Setup{
				UserID:     "u",
				Repository: "r",
				Hash:       "h",
				UsedAt:     t0,
			}, &Setup{UserID: "u", Repository: "r", Hash: "g", UsedAt: t0},
			&Setup{UserID: "u", Repository: "r", Hash: "h", UsedAt: t1},
		},
		tableProfiles: {
			&Profile{UserID: "u", Kind: ProfileLLM, Name: "n", ID: "a"},
			&Profile{UserID: "u", Kind: ProfileAgent, Name: "n", ID: "b"},
			&Profile{UserID: "u", Kind: ProfileLLM, Name: "n", ID: "c", Active: true},
		},
		tableSessions: {
			&Session{Hash: "h", UserID: "u", CreatedAt: t0, SeenAt: t0},
			&Session{Hash: "g", UserID: "v", CreatedAt: t1, SeenAt: t1},
			&Session{Hash: "h", UserID: "u", CreatedAt: t0, SeenAt: t1},
		},
		tableSignInCodes: {
			&SignInCode{Hash: "h", UserID: "u", Until: t0}, &SignInCode{Hash: "g", UserID: "v", Until: t1},
			&SignInCode{Hash: "h", UserID: "u", Until: t2},
		},
		tableDevices: {
			&Device{Hash: "h", UserCode: "a", Until: t0}, &Device{Hash: "g", UserCode: "b", UserID: "v", Until: t1},
			&Device{Hash: "h", UserCode: "a", UserID: "u", Until: t0},
		},
		tableUsage: {
			&usageRow{"", Usage{Running: 1}}, &usageRow{"u", Usage{Running: 1}}, &usageRow{"", Usage{Running: 2}},
		},
		tableSecretRefs: {
			&secretRef{
				ref:   SecretRef{Path: "p", Version: 1},
				count: 1,
			}, &secretRef{ref: SecretRef{Path: "p", Version: 2}, count: 1},
			&secretRef{ref: SecretRef{Path: "p", Version: 1}, count: 2},
		},
	}
}

// TestEveryIndex stores, moves and deletes rows of every table and looks them up through every
// index.
func TestEveryIndex(t *testing.T) {
	rows := samples()
	for name, table := range schema().Tables {
		t.Run(name, func(t *testing.T) {
			s, ok := rows[name]
			if !ok {
				t.Fatal("this table has no sample: add one")
			}
			db := newDB()
			for _, step := range []struct {
				name          string
				change        func(*memdb.Txn) error
				present, gone []any
			}{
				{"insert", func(txn *memdb.Txn) error { return txn.Insert(name, s.a) }, []any{s.a}, []any{s.b}},
				{"insert another", func(txn *memdb.Txn) error { return txn.Insert(name, s.b) }, []any{s.a, s.b}, nil},
				{"move", func(txn *memdb.Txn) error { return txn.Insert(name, s.moved) }, []any{s.moved, s.b}, nil},
				{"delete", func(txn *memdb.Txn) error { return txn.Delete(name, s.moved) }, []any{s.b}, []any{s.a, s.moved}},
			} {
				txn := db.Txn(true)
				if err := step.change(txn); err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				txn.Commit()
				for _, index := range slices.Sorted(maps.Keys(table.Indexes)) {
					checkIndex(t, db.Txn(false), table, index, step.present, step.gone)
				}
			}
		})
	}
}

// checkIndex looks rows up by key and by iterating the index, the two ways that the package reads
// one.
func checkIndex(t *testing.T, txn *memdb.Txn, table *memdb.TableSchema, index string, present, gone []any) {
	t.Helper()
	indexer := table.Indexes[index].Indexer.(memdb.SingleIndexer)
	var want []string
	for _, row := range present {
		ok, key, err := indexer.FromObject(row)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			continue
		}
		want = append(want, string(key))
		if got, err := txn.First(table.Name, index, key); err != nil || got != row {
			t.Errorf("%s: First gives %+v (%v), want %+v", index, got, err, row)
		}
	}
	for _, row := range gone {
		if ok, key, _ := indexer.FromObject(row); ok {
			if got, _ := txn.First(table.Name, index, key); got == row {
				t.Errorf("%s: %+v is still found", index, row)
			}
		}
	}
	slices.Sort(want)
	walk := func(it memdb.ResultIterator, err error) []string {
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for row := it.Next(); row != nil; row = it.Next() {
			_, key, _ := indexer.FromObject(row)
			keys = append(keys, string(key))
		}
		return keys
	}
	if d := cmp.Diff(want, walk(txn.Get(table.Name, index+"_prefix", []byte(nil)))); d != "" {
		t.Errorf("%s: walked: %s", index, d)
	}
	if d := cmp.Diff(want, walk(txn.LowerBound(table.Name, index, []byte{0}))); d != "" {
		t.Errorf("%s: walked from a bound: %s", index, d)
	}
}

// TestTimeKeys: keys sort as the times do, before 1970 too.
func TestTimeKeys(t *testing.T) {
	times := []time.Time{
		time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(1969, 12, 31, 23, 59, 59, 999999000, time.UTC),
		time.Unix(0, 0), testEpoch, testEpoch.Add(time.Microsecond), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	for i := 1; i < len(times); i++ {
		if string(appendTime(nil, times[i-1])) >= string(appendTime(nil, times[i])) {
			t.Errorf("%v does not sort before %v", times[i-1], times[i])
		}
		if string(appendTimeDesc(nil, times[i-1])) <= string(appendTimeDesc(nil, times[i])) {
			t.Errorf("%v does not sort after %v", times[i-1], times[i])
		}
	}
}

// TestSnapshotNamesEveryTable: a table that is neither in the snapshot nor
// derived would be lost on restart.
func TestSnapshotNamesEveryTable(t *testing.T) {
	s := NewStore()
	txn := s.db.Txn(true)
	want := map[string]bool{}
	for name, x := range samples() {
		if name == tableSecretRefs || name == tableUsage {
			continue
		}
		want[name] = true
		if err := txn.Insert(name, x.a); err != nil {
			t.Fatal(err)
		}
	}
	txn.Commit()
	s.current.Store(&View{txn: s.db.Txn(false), meta: s.View().meta, commands: s.commands, epoch: new(epoch)})
	got := map[string]bool{}
	for table := range s.Snapshot().rows() {
		got[table] = true
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if n := restored(t, s); n.Checksum() != s.Checksum() {
		t.Error("the restored state differs")
	}
	if len(want) != len(schema().Tables)-2 {
		t.Error(fmt.Sprint("tables: ", len(want)))
	}
}
