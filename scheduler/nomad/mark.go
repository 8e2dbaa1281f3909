package nomad

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// The mark is one Nomad variable. A write names the variable's modify index, and Nomad refuses a
// write that names another.

// The items of the variable.
const (
	itemCluster = "cluster"
	itemHistory = "history"
	itemEpoch   = "epoch"
	itemNonce   = "nonce"
	itemIndex   = "index"
	itemTime    = "time"
)

// CheckVariable returns an error if path can't be the path of a Nomad variable for the mark.
func CheckVariable(path string) error {
	// Nomad's own rule, and the paths that it reserves.
	if !regexp.MustCompile(`^[a-zA-Z0-9_~/-]{1,128}$`).MatchString(path) || strings.Trim(path, "/") != path ||
		path == "nomad" || strings.HasPrefix(path, "nomad/") {
		return fmt.Errorf("must be a path of letters, digits, '-', '_' and '~' that is not below nomad/, got %q", path)
	}
	return nil
}

// ReadMark implements scheduler.Marks.
func (r *Runner) ReadMark(ctx context.Context) (mark fsm.Mark, cas uint64, found bool, err error) {
	var v *api.Variable
	err = r.callMark(ctx, opReadMark, func(ctx context.Context) error {
		var err error
		v, _, err = r.client.Variables().Peek(r.cfg.Variable, query(ctx))
		return err
	})
	if err != nil || v == nil {
		return fsm.Mark{}, 0, false, err
	}
	if mark, err = parseMark(v.Items); err != nil {
		return fsm.Mark{}, 0, false, fsm.Errorf(fsm.CodeScheduler,
			"the Nomad variable %s holds no mark that can be read: %v; see what else writes it", r.cfg.Variable, err)
	}
	return mark, v.ModifyIndex, true, nil
}

// WriteMark implements scheduler.Marks.
func (r *Runner) WriteMark(ctx context.Context, mark fsm.Mark, cas uint64) error {
	return r.callMark(ctx, opWriteMark, func(ctx context.Context) error {
		v := &api.Variable{Path: r.cfg.Variable, Items: markItems(mark), ModifyIndex: cas}
		_, _, err := r.client.Variables().CheckedUpdate(v, write(ctx))
		return err
	})
}

// callMark is call, but a Failure, which is about a sandbox, becomes CodeScheduler.
func (r *Runner) callMark(ctx context.Context, op string, fn func(ctx context.Context) error) error {
	err := r.call(ctx, op, fn)
	if fail := (*scheduler.Failure)(nil); errors.As(err, &fail) {
		return fsm.Errorf(fsm.CodeScheduler, "the Nomad variable %s: %s", r.cfg.Variable, fail.Detail)
	}
	return err
}

func markItems(m fsm.Mark) api.VariableItems {
	return api.VariableItems{
		itemCluster: m.Cluster, itemHistory: m.History, itemEpoch: strconv.FormatInt(m.Epoch, 10),
		itemNonce: m.Nonce, itemIndex: strconv.FormatUint(m.Index, 10), itemTime: m.Time.UTC().Format(time.RFC3339Nano),
	}
}

func parseMark(items api.VariableItems) (fsm.Mark, error) {
	m := fsm.Mark{Cluster: items[itemCluster], History: items[itemHistory], Nonce: items[itemNonce]}
	if m.Cluster == "" || m.History == "" || m.Nonce == "" {
		return m, errors.New("cluster, history or nonce is missing")
	}
	var err, wrong error
	if m.Epoch, wrong = strconv.ParseInt(items[itemEpoch], 10, 64); wrong != nil {
		err = fmt.Errorf("epoch: %w", wrong)
	}
	if m.Index, wrong = strconv.ParseUint(items[itemIndex], 10, 64); wrong != nil {
		err = fmt.Errorf("index: %w", wrong)
	}
	if m.Time, wrong = time.Parse(time.RFC3339Nano, items[itemTime]); wrong != nil {
		err = fmt.Errorf("time: %w", wrong)
	}
	return m, err
}
