package fsm

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	reader "github.com/go-json-experiment/json/v1"
)

// binaryMark is the first byte of a command with a binary header. A command in JSON begins with a
// letter; the marks of batches (cluster/raftfsm) and proofs (cluster) are lower.
const binaryMark = 0x03

// The order of the header's texts behind the type. Each is its length as a uvarint and its bytes, in
// UTF-8.
const (
	textID = iota
	textUserID
	textFingerprint
	textLookup
	textSandboxID
	textKeyHash
	texts // their number
)

// EncodeBinary is Encode for readers of VersionBinary: the mark, the type, the header's other
// texts, the time in microseconds since 1970 (8 bytes, big endian) and the body as Encode writes it,
// or as a binaryBody does. It is never longer than Encode's result.
func (c Command) EncodeBinary() ([]byte, error) {
	body, err := c.encodeBody()
	if err != nil {
		return nil, err
	}
	header := [texts]string{
		textID: c.ID, textUserID: c.UserID, textFingerprint: c.Fingerprint, textLookup: c.Credential.Lookup,
		textSandboxID: c.Credential.SandboxID, textKeyHash: c.Credential.KeyHash,
	}
	size := 1 + uvarintLen(len(c.Type)) + len(c.Type) + 8 + len(body)
	for _, text := range header {
		if !utf8.ValidString(text) {
			return nil, Errorf(CodeInvalid, "the header of command %s is no valid UTF-8", c.Type)
		}
		size += uvarintLen(len(text)) + len(text)
	}
	if size > MaxCommandBytes {
		return nil, c.tooLarge(size)
	}
	at := c.Time.Unix()
	if at < minTime || at >= maxTime {
		return nil, Errorf(CodeInvalid, "command %s has a time outside of the years 0 to 9999", c.Type)
	}
	b := append(make([]byte, 0, size), binaryMark)
	b = append(binary.AppendUvarint(b, uint64(len(c.Type))), c.Type...)
	for _, text := range header {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(c.Time.UnixMicro())) //nolint:gosec // two's complement
	return append(b, body...), nil
}

// encodeBody writes the body of a command with a binary header.
func (c Command) encodeBody() ([]byte, error) {
	if b, ok := c.Body.(binaryBody); ok {
		return b.appendBinary(nil)
	}
	body, err := json.Marshal(c.Body)
	if err != nil {
		return nil, fmt.Errorf("encoding command %s: %w", c.Type, err)
	}
	return body, nil
}

// decodeBody reads what encodeBody wrote.
func decodeBody(raw []byte, body Body) error {
	if b, ok := body.(binaryBody); ok {
		return b.readBinary(raw)
	}
	if raw[0] != '{' {
		return errors.New("its body is no object")
	}
	return reader.Unmarshal(raw, body)
}

// minTime and maxTime bound the times that JSON can say, in seconds since 1970; yearOne is that of the
// zero Time.
const (
	minTime   = -62_167_219_200
	maxTime   = 253_402_300_800
	yearOne   = -62_135_596_800
	dayMicros = 24 * 60 * 60 * 1_000_000
)

// timeOf is the inverse of Time.UnixMicro, without the machine's zone.
func timeOf(micros int64) (at time.Time, inRange bool) {
	if micros < minTime*1_000_000 || micros >= maxTime*1_000_000 {
		return at, false
	}
	micros -= yearOne * 1_000_000
	return at.AddDate(0, 0, int(micros/dayMicros)).Add(time.Duration(micros%dayMicros) * time.Microsecond), true
}

// uvarintLen returns the length of a number as a uvarint.
func uvarintLen(n int) int {
	length := 1
	for ; n > math.MaxInt8; n >>= 7 {
		length++
	}
	return length
}

// errCutShort: a binary header ends before its last member.
var errCutShort = errors.New("decoding command: its header is cut short")

// cutText returns the first text of a binary header, without a copy, and what follows it.
func cutText(b []byte) (text, rest []byte, err error) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, nil, errCutShort
	}
	b = b[n:]
	return b[:length], b[length:], nil
}

// IsBinary reports whether an encoded command has a binary header.
func IsBinary(encoded []byte) bool { return len(encoded) > 0 && encoded[0] == binaryMark }

// decodeBinary reads what EncodeBinary wrote.
func decodeBinary(b []byte) (Command, error) {
	kind, b, err := cutText(b[1:])
	if err != nil {
		return Command{}, err
	}
	r, known := commandTable[CommandType(kind)]
	if !known {
		return Command{}, errUnknownType(CommandType(kind))
	}
	var header [texts]string
	for i := range header {
		text, rest, err := cutText(b)
		if err != nil {
			return Command{}, err
		}
		if !utf8.Valid(text) {
			return Command{}, errors.New("decoding command: its header is no valid UTF-8")
		}
		header[i], b = string(text), rest
	}
	if len(b) < 8 {
		return Command{}, errCutShort
	}
	at, inRange := timeOf(int64(binary.BigEndian.Uint64(b))) //nolint:gosec // two's complement
	body := r.body()
	t := body.CommandType()
	switch b = b[8:]; {
	case !inRange:
		return Command{}, fmt.Errorf("decoding command %s: its time is outside of the years 0 to 9999", t)
	case len(b) == 0:
		return Command{}, fmt.Errorf("decoding command %s: it has no body", t)
	}
	if err := decodeBody(b, body); err != nil {
		return Command{}, fmt.Errorf("decoding command %s: %w", t, err)
	}
	return Command{
		ID: header[textID], Type: t, Time: at, UserID: header[textUserID],
		Fingerprint: header[textFingerprint],
		Credential: Credential{
			Lookup: header[textLookup], SandboxID: header[textSandboxID], KeyHash: header[textKeyHash],
		},
		Body: body,
	}, nil
}
