package cluster

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
)

// proofMark is the first byte of a command that travels with a proof. The log never holds one.
const proofMark = 0x02

// Operator is the operator's key behind a call, and the key's user. The key goes neither to a peer
// nor to the log: only a proof of it travels.
type Operator struct{ UserID, Lookup, Key string }

// operatorKey and callerKey are the keys of values in a context.
type (
	operatorKey struct{}
	callerKey   struct{}
)

// AsOperator returns a context whose commands and membership changes are the operator's.
func AsOperator(ctx context.Context, o Operator) context.Context {
	return context.WithValue(ctx, operatorKey{}, o)
}

// ofOperator reports whether the leader takes a command from another process only with an operator's
// proof. Apply takes protocol.raise without one, which the leader of a new cluster proposes.
func ofOperator(t fsm.CommandType) bool { return t.OfOperator() || t == fsm.ProtocolRaise }

func operatorOf(ctx context.Context) Operator {
	o, _ := ctx.Value(operatorKey{}).(Operator)
	return o
}

// encodeFor validates and encodes a command, with a binary header if every node reads that. One that
// needs an operator's key gets the key's id and a proof of it.
func encodeFor(ctx context.Context, cmd fsm.Command, binary bool) (
	of fsm.Command, data, proof []byte, refusal *fsm.Error,
) {
	if err := validate(cmd); err != nil {
		return cmd, nil, nil, err
	}
	o := operatorOf(ctx)
	needed := ofOperator(cmd.Type) && o.Key != ""
	if needed && cmd.Credential.IsZero() {
		cmd.UserID, cmd.Credential = o.UserID, fsm.Credential{Lookup: o.Lookup}
	}
	var err error
	if binary {
		data, err = cmd.EncodeBinary()
	} else {
		data, err = cmd.Encode()
	}
	if err != nil {
		return cmd, nil, nil, asError(err)
	}
	if needed {
		proof = fsm.OperatorProof(o.Key, data)
	}
	return cmd, data, proof, nil
}

// withProof encodes a command with the proof of the key behind it, cutProof takes the two apart.
func withProof(data, proof []byte) []byte {
	if len(proof) == 0 {
		return data
	}
	out := binary.AppendUvarint(append(make([]byte, 0, 8+len(proof)+len(data)), proofMark), uint64(len(proof)))
	return append(append(out, proof...), data...)
}

func cutProof(part []byte) (proof, data []byte) {
	if len(part) == 0 || part[0] != proofMark {
		return nil, part
	}
	length, n := binary.Uvarint(part[1:])
	rest := part[1:]
	if n <= 0 || length > uint64(len(rest)-n) {
		return nil, part // it is no command either
	}
	return rest[n : n+int(length)], rest[n+int(length):]
}

// authorised refuses an operator's command of another node without a proof of an operator's key. A
// node's certificate alone must not make keys. Apply judges the first key by itself.
func (n *Node) authorised(cmd fsm.Command, data, proof []byte) *fsm.Error {
	v := n.store.View()
	if !ofOperator(cmd.Type) || !v.Active(fsm.VersionAccess) || !v.AnyOperatorKey(n.clock()) {
		return nil
	}
	if b, ok := cmd.Body.(*fsm.APIKeyCreateBody); ok && b.Bootstrap {
		return n.mayReset(v, b)
	}
	if v.OperatorProves(cmd.Credential.Lookup, data, proof, n.clock()) {
		return nil
	}
	n.logger.Warn("cluster: a command of a peer was refused: no operator's key is behind it", "type", cmd.Type)
	return errNoOperator()
}

// resetFile is the file of the data directory that allows one more bootstrap. It holds the number of
// the last key, so that a file that is left there allows no second one.
const resetFile = "bootstrap-reset"

// maxResetFile bounds the read of resetFile, in bytes.
const maxResetFile = 64

// mayReset refuses a bootstrap beside operators' keys unless the leader's disk allows it: whoever
// writes there has the whole state anyway.
func (n *Node) mayReset(v *fsm.View, b *fsm.APIKeyCreateBody) *fsm.Error {
	if k := v.APIKeyByLookup(b.Lookup); !b.Reset || k != nil && k.Hash == b.Hash {
		return nil // Apply refuses it, or returns the key that an earlier try issued
	}
	file, last := filepath.Join(n.cfg.DataDir, resetFile), strconv.Itoa(v.LastAPIKeyID())
	allowed, err := raftstore.ReadBounded(file, maxResetFile)
	if err == nil && strings.TrimSpace(string(allowed)) == last {
		n.logger.Warn("cluster: an operator's key is issued because "+resetFile+" allows it", "path", file)
		return nil
	}
	return fsm.Errorf(fsm.CodeForbidden, "write %s to %s on %s, the leader, and repeat this", last, file, n.cfg.NodeName)
}

func errNoOperator() *fsm.Error {
	return fsm.Errorf(fsm.CodeForbidden, "this needs an operator's key: the certificate of a node is not enough")
}

// provenCaller is the key id behind a membership change, as peers send it.
type provenCaller struct {
	Lookup string `json:"lookup"`
	// Time is when the caller asked; an old proof is refused.
	Time  time.Time `json:"time"`
	Proof []byte    `json:"proof"`
}

// message is what the caller proves for.
func (p provenCaller) message(of string) []byte {
	return []byte("membership\n" + p.Time.UTC().Format(time.RFC3339Nano) + "\n" + of)
}

// provable is a request of a membership change.
type provable interface {
	// proven returns the text that an operator's proof is for.
	proven() string
}

func (r removeRequest) proven() string { return "remove\n" + r.Name + "\n" + r.RemoveOptions.text() }

// proven is that of the removal, which is the last step of the replacement.
func (r replaceRequest) proven() string { return removeRequest{r.Old, r.RemoveOptions}.proven() }

func (r transferRequest) proven() string { return "transfer\n" + r.To }

// proven is empty: a node joins by its certificate.
func (r joinRequest) proven() string { return "" }

func (o RemoveOptions) text() string {
	text, err := json.Marshal(o)
	if err != nil {
		return "" // two flags and a text
	}
	return string(text)
}

// withProvenCaller encodes a request with the caller behind it: the operator of this process, or
// the one that a peer sent.
func withProvenCaller(ctx context.Context, request any, of string) ([]byte, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	caller, foreign := ctx.Value(callerKey{}).(provenCaller)
	if o := operatorOf(ctx); !foreign && o.Key != "" {
		caller = provenCaller{Lookup: o.Lookup, Time: time.Now().UTC()}
		caller.Proof = fsm.OperatorProof(o.Key, caller.message(of))
	}
	if caller.Lookup == "" {
		return body, nil
	}
	text, err := json.Marshal(caller)
	if err != nil {
		return nil, err
	}
	separator := ","
	if string(body) == "{}" {
		separator = ""
	}
	return []byte(string(body[:len(body)-1]) + separator + `"caller":` + string(text) + "}"), nil
}

// withCaller returns the context of a peer's call, with the caller that it names.
func withCaller(ctx context.Context, request []byte) context.Context {
	var r struct {
		Caller provenCaller `json:"caller"`
	}
	if json.Unmarshal(request, &r) != nil {
		r.Caller = provenCaller{}
	}
	return context.WithValue(ctx, callerKey{}, r.Caller)
}

// authorisedCall refuses a peer's membership change without a proof of an operator's key.
func (n *Node) authorisedCall(ctx context.Context, of string) error {
	caller, foreign := ctx.Value(callerKey{}).(provenCaller)
	if !foreign {
		return nil
	}
	// Only an open term has every key of earlier terms.
	if !n.awaitOpen(ctx) {
		return n.orStopping(fsm.Errorf(fsm.CodeNoLeader, "leadership moved; nothing was done"))
	}
	v := n.store.View()
	if !v.Active(fsm.VersionAccess) || !v.AnyOperatorKey(n.clock()) {
		return nil
	}
	age := n.clock().Sub(caller.Time)
	if age < maxCommandAge && age > -maxCommandAge && v.OperatorProves(caller.Lookup, caller.message(of), caller.Proof,
		n.clock()) {
		return nil
	}
	n.logger.Warn("cluster: a membership change of a peer was refused: no operator's key is behind it")
	return errNoOperator()
}

// operated follows each operator's command that this node has applied.
func (n *Node) operated(e fsm.Entry, refusal *fsm.Error) {
	if !ofOperator(e.Command.Type) {
		return
	}
	n.logOperated(e, refusal)
	if e.Command.Type != fsm.ProtocolRaise || !n.store.View().Active(fsm.VersionPeers) {
		return
	}
	if err := n.senders.DemandProofs(); err != nil {
		n.logger.Error("cluster: a start of this node will believe as older programs do until it has read its log", "error",
			err)
	}
}

// logOperated logs an operator's command that this node has applied. Each node logs it, so that a
// leader that forges one is seen on the others. A start repeats those of the log's entries that are in
// no snapshot: the index is the same.
func (n *Node) logOperated(e fsm.Entry, refusal *fsm.Error) {
	attrs := []any{"index", e.Index, "type", e.Command.Type}
	if key := n.store.View().APIKeyByLookup(e.Command.Credential.Lookup); key != nil {
		attrs = append(attrs, "key", strconv.Itoa(key.ID))
	}
	if refusal != nil {
		attrs = append(attrs, "error", refusal)
	}
	n.logger.Info("cluster: an operator's command is applied", attrs...)
}

// attribute names the operator behind a command that follows from a membership change.
func (n *Node) attribute(ctx context.Context, cmd *fsm.Command) {
	lookup := operatorOf(ctx).Lookup
	if caller, ok := ctx.Value(callerKey{}).(provenCaller); ok {
		lookup = caller.Lookup
	}
	if key := n.store.View().APIKeyByLookup(lookup); key != nil {
		cmd.UserID, cmd.Credential = key.UserID, fsm.Credential{Lookup: lookup}
	}
}
