package main

import (
	"context"
	"fmt"

	"filippo.io/age"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	copystore "bivouac.dev/bivouac/scheduler/copies"
)

// copyKeys are the keys of the workspaces' copies: each version of one entry in the secret store is
// one. It implements copies.Keys.
type copyKeys struct {
	secrets keyEntries
	// active reports whether the cluster encrypts copies; nil where they are only read.
	active func() bool
}

// keyEntries is what the keys need of a secretStore.
type keyEntries interface {
	Newest(ctx context.Context, path string) (int, error)
	Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error)
	Write(ctx context.Context, path string, data map[string]string) (fsm.SecretRef, error)
}

func newCopyKeys(s secretStore) copyKeys {
	return copyKeys{s, func() bool { return s.view().Active(fsm.VersionCopies) }}
}

var _ copystore.Keys = copyKeys{}

// copyKeyMember is the member of the entry: an identity as age(1) reads it.
const copyKeyMember = "identity"

// Recipient returns the newest key, and makes the first one. Below fsm.VersionCopies there is none: an
// older leader could not read what it encrypts.
func (k copyKeys) Recipient(ctx context.Context) (age.Recipient, error) {
	if k.active == nil || !k.active() {
		return nil, nil //nolint:nilnil // copies.Keys: nothing is encrypted yet
	}
	newest, err := k.secrets.Newest(ctx, scheduler.CopyKeys)
	if err != nil {
		return nil, err
	}
	if newest > 0 {
		id, err := k.identity(ctx, newest)
		if fsm.CodeOf(err) == fsm.CodeNotFound { // an older key is no choice: somebody may have ended its use
			return nil, fsm.Errorf(fsm.CodeSecretStore, "version %d of %s in the secret store is deleted: undelete it, "+
				"or write a newer one (bivouac runbook copies)", newest, scheduler.CopyKeys)
		}
		if err != nil {
			return nil, err
		}
		return id.Recipient(), nil
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	_, err = k.secrets.Write(ctx, scheduler.CopyKeys, map[string]string{copyKeyMember: id.String()})
	return id.Recipient(), err
}

// Identities returns all keys, the newest first.
func (k copyKeys) Identities(ctx context.Context) (list []age.Identity, err error) {
	newest, err := k.secrets.Newest(ctx, scheduler.CopyKeys)
	for n := newest; n > 0 && err == nil; n-- {
		id, failed := k.identity(ctx, n)
		switch {
		case failed == nil:
			list = append(list, id)
		case fsm.CodeOf(failed) != fsm.CodeNotFound:
			err = failed
		}
	}
	return list, err
}

func (k copyKeys) identity(ctx context.Context, version int) (*age.X25519Identity, error) {
	data, err := k.secrets.Read(ctx, fsm.SecretRef{Path: scheduler.CopyKeys, Version: version})
	if err != nil {
		return nil, err
	}
	id, err := age.ParseX25519Identity(data[copyKeyMember])
	if err != nil {
		return nil, fmt.Errorf("version %d of %s in the secret store is no key of copies", version, scheduler.CopyKeys)
	}
	return id, nil
}
