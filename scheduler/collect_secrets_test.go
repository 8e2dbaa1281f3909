package scheduler_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// TestScheduler_EmptyCluster_TouchesNoSecret: nodes with empty data directories form a new
// cluster on the secret store of a live one.
func TestScheduler_EmptyCluster_TouchesNoSecret(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]int{"before births": 1, "with births": fsm.ProtocolVersion} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				const path = "users/u1/settings/llm_api_key"
				if version > 1 {
					w.cluster.Must(&fsm.ProtocolRaiseBody{Version: version}, "")
				}
				theirs := fsm.Birth{Cluster: "cluster-0", Nonce: "n", Index: 1}
				for _, birth := range []fsm.Birth{theirs, {}} {
					w.secrets.Birth = func() fsm.Birth { return birth }
					if _, err := w.secrets.Write(w.Context(), path, map[string]string{"value": "x"}); err != nil {
						t.Fatal(err)
					}
				}
				w.elapse(nomadtest.Grace + nomadtest.Retention + 3*w.cfg.CollectInterval)
				for v := range 2 {
					ref := fsm.SecretRef{Path: path, Version: v + 1}
					if _, err := w.secrets.Read(w.Context(), ref); err != nil || w.secrets.Deleted(path, v+1) {
						t.Errorf("%+v: %v", ref, err)
					}
				}
			})
		})
	}
}

// TestScheduler_ReferencedSecretThatIsDeleted_ComesBack: a restored state refers to a version
// that was collected meanwhile, and to one whose number the secret store, which was restored too,
// has assigned again.
func TestScheduler_ReferencedSecretThatIsDeleted_ComesBack(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		const path = "users/u1/settings/llm_api_key"
		w.cluster.Must(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion}, "")
		w.secrets.Birth = func() fsm.Birth { return w.cluster.Store.View().Birth() }
		ref, err := w.secrets.Write(w.Context(), path, map[string]string{"value": "x"})
		if err != nil {
			t.Fatal(err)
		}
		w.elapse(nomadtest.Grace + w.cfg.CollectInterval + time.Second)
		if !w.secrets.Deleted(path, 1) {
			t.Fatal("it is not collected: the test does not show what it should")
		}
		w.cluster.Must(&fsm.SettingsPutBody{LLMAPIKey: &ref}, "u1")
		w.elapse(w.cfg.CollectInterval + time.Second)
		if w.secrets.Deleted(path, 1) || w.gauge("bivouac_secret_strangers", "") != 0 {
			t.Error("it is still deleted")
		}
		ref.Created = "2026-01-02T03:04:05Z"
		w.cluster.Must(&fsm.SettingsPutBody{LLMAPIKey: &ref}, "u1")
		w.elapse(w.cfg.CollectInterval + time.Second)
		if n := w.gauge("bivouac_secret_strangers", ""); n != 1 {
			t.Errorf("%v strangers", n)
		}
	})
}

func TestScheduler_UnreferencedSecrets_AreCollected(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		const path = "users/u1/settings/llm_api_key"
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		put := func() {
			if _, err := w.secrets.Write(w.Context(), path, map[string]string{"value": "x"}); err != nil {
				t.Fatal(err)
			}
		}
		put() // without a birth: a stranger
		w.cluster.Must(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion}, "")
		w.secrets.Birth = func() fsm.Birth { return w.cluster.Store.View().Birth() }
		put()
		w.secrets.Birth = func() fsm.Birth { return fsm.Birth{Cluster: "another", Nonce: "lost", Index: 1} }
		put() // another cluster's
		w.elapse(nomadtest.Grace + w.cfg.CollectInterval + time.Second)
		for version, deleted := range map[int]bool{1: false, 2: true, 3: false} {
			if w.secrets.Deleted(path, version) != deleted {
				t.Errorf("version %d: deleted %t", version, !deleted)
			}
		}
		if n := w.gauge("bivouac_secret_strangers", ""); n != 2 {
			t.Errorf("%v strangers", n)
		}
		w.elapse(nomadtest.Retention + w.cfg.CollectInterval)
		if _, err := w.secrets.Read(w.Context(), fsm.SecretRef{Path: path, Version: 2}); fsm.CodeOf(err) != fsm.CodeNotFound {
			t.Errorf("an unreferenced version: %v", err)
		}
		for _, version := range []int{1, 3} {
			if _, err := w.secrets.Read(w.Context(), fsm.SecretRef{Path: path, Version: version}); err != nil {
				t.Errorf("a stranger: %v", err)
			}
		}
		if _, err := w.secrets.Read(w.Context(), fsm.SecretRef{Path: fsm.SandboxKeyPath("a"), Version: 1}); err != nil {
			t.Errorf("the key of a sandbox: %v", err)
		}
	})
}
