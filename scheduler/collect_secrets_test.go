package scheduler_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// TestScheduler_EmptyCluster_TouchesNoSecret: nodes with empty data directories
// form a new cluster on the secret store of one that lives.
func TestScheduler_EmptyCluster_TouchesNoSecret(t *testing.T) {
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

// TestScheduler_ReferencedSecretThatIsDeleted_ComesBack: a restored state refers
// to a version that was collected meanwhile; and to one whose number the store,
// which was restored too, gave out again.
func TestScheduler_ReferencedSecretThatIsDeleted_ComesBack(t *testing.T) {
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
