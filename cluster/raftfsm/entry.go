package raftfsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

const (
	// batchMark is the first byte of an entry with several commands. A single command begins with a
	// letter or with the mark of a binary header.
	batchMark = 0x01
	// MaxBatch bounds the commands of a batch.
	MaxBatch = 512
	// MaxBatchBytes bounds their bytes. One larger command forms its own batch.
	MaxBatchBytes = 256 << 10
)

// JoinCommands encodes a log entry: a single command unchanged; several as the mark and, for each,
// its length as a uvarint and its bytes.
func JoinCommands(commands [][]byte) []byte {
	if len(commands) == 1 {
		return commands[0]
	}
	size := 1
	for _, c := range commands {
		size += binary.MaxVarintLen32 + len(c)
	}
	entry := append(make([]byte, 0, size), batchMark)
	for _, c := range commands {
		entry = binary.AppendUvarint(entry, uint64(len(c)))
		entry = append(entry, c...)
	}
	return entry
}

// SplitCommands is the inverse of JoinCommands. The result shares entry's memory.
func SplitCommands(entry []byte) ([][]byte, error) {
	if len(entry) == 0 || entry[0] != batchMark {
		return [][]byte{entry}, nil
	}
	rest := entry[1:]
	var commands [][]byte
	for len(rest) > 0 {
		length, n := binary.Uvarint(rest)
		if n <= 0 || length == 0 || length > uint64(len(rest)-n) {
			return nil, fmt.Errorf("command %d of the batch is cut short", len(commands)+1)
		}
		rest = rest[n:]
		commands = append(commands, rest[:length:length])
		rest = rest[length:]
	}
	if len(commands) < 2 {
		return nil, errors.New("a batch of less than two commands")
	}
	return commands, nil
}

// DecodeEntry decodes the commands of a log entry. It refuses unknown command types, and a protocol
// version newer than this program's.
func DecodeEntry(entry []byte) ([]fsm.Command, error) {
	parts, err := SplitCommands(entry)
	if err != nil {
		return nil, err
	}
	commands := make([]fsm.Command, len(parts))
	for i, part := range parts {
		if err := fsm.CheckLogged(part); err != nil {
			return nil, err
		}
		cmd, err := fsm.DecodeCommand(part)
		if err != nil {
			return nil, err
		}
		commands[i] = cmd
	}
	return commands, nil
}

// CommandsIn is DecodeEntry with an error that names the entry.
func CommandsIn(l *raft.Log) ([]fsm.Command, error) {
	commands, err := DecodeEntry(l.Data)
	if err != nil {
		return nil, fmt.Errorf("applying log entry %d of term %d: %w", l.Index, l.Term, err)
	}
	return commands, nil
}

// CheckEntry refuses a log entry that moves the cluster beyond this program's protocol version.
func CheckEntry(l *raft.Log) error {
	if l.Type != raft.LogCommand {
		return nil
	}
	parts, err := SplitCommands(l.Data)
	if err != nil {
		return nil // Apply names the entry
	}
	for _, part := range parts {
		if err := fsm.CheckLogged(part); err != nil {
			return fmt.Errorf("log entry %d: %w", l.Index, err)
		}
	}
	return nil
}

// CheckState refuses a snapshot of a newer protocol version or format.
func CheckState(r io.Reader) error { return fsm.CheckSnapshot(r) }
