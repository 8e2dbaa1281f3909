package secrets

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/vault/api"
)

const (
	// birthKey is the member of an entry's custom metadata with the birth of its newest versions.
	// "bivouac_birth_<n>" has the birth of the versions up to n, down to the next lower member. Custom
	// metadata belongs to an entry, whose versions can come from several histories.
	birthKey = "bivouac_birth"
	// unknownBirth is the value for versions without a birth.
	unknownBirth = "unknown"
	// maxBirths bounds the members; KV allows 64.
	maxBirths = 40
)

// births are the births of an entry's versions. Key 0 is the birth of the newest versions. Any
// other key is the highest version that its birth applies to.
type births map[int]Birth

// parseBirths reads custom metadata.
func parseBirths(custom map[string]any) births {
	b := births{}
	for key, value := range custom {
		rest, ok := strings.CutPrefix(key, birthKey)
		if !ok {
			continue
		}
		upTo := 0
		if rest != "" {
			var err error
			if upTo, err = strconv.Atoi(strings.TrimPrefix(rest, "_")); err != nil || upTo < 1 {
				continue
			}
		}
		text, _ := value.(string)
		b[upTo], _ = ParseBirth(text)
	}
	return b
}

// bounds returns the keys other than 0, ascending.
func (b births) bounds() []int {
	keys := slices.Sorted(maps.Keys(b))
	return slices.DeleteFunc(keys, func(k int) bool { return k == 0 })
}

// of returns the birth of one version.
func (b births) of(version int) Birth {
	for _, upTo := range b.bounds() {
		if version <= upTo {
			return b[upTo]
		}
	}
	return b[0]
}

// begin prepares for versions above current with the given birth. It reports whether anything
// changed.
func (b births) begin(current int, birth Birth) bool {
	newest := b[0]
	switch {
	case newest == birth, birth != (Birth{}) && newest.covers(birth):
		return false
	case birth.covers(newest) && newest != (Birth{}): // the same term, later
	default:
		if _, there := b[current]; current > 0 && !there {
			b[current] = newest
		}
	}
	b[0] = birth
	return true
}

// set gives a single version its own birth.
func (b births) set(version, current int, birth Birth) {
	if before := version - 1; before > 0 {
		b[before] = b.of(before)
	}
	if version == current {
		b[0] = birth
		return
	}
	b[version] = birth
}

// trim removes what no version needs any more; lowest is the lowest version that is not destroyed.
// If there are still too many, the oldest become unknown, which is safe.
func (b births) trim(lowest int) {
	maps.DeleteFunc(b, func(upTo int, _ Birth) bool { return upTo != 0 && upTo < lowest })
	for keys := b.bounds(); len(keys) > maxBirths; keys = keys[1:] {
		delete(b, keys[0])
		b[keys[1]] = Birth{}
	}
}

// into adds the members to custom metadata.
func (b births) into(custom map[string]any) {
	for upTo, birth := range b {
		key, text := birthKey, birth.String()
		if upTo > 0 {
			key += "_" + strconv.Itoa(upTo)
		}
		text = cmp.Or(text, unknownBirth)
		if upTo > 0 || birth != (Birth{}) {
			custom[key] = text
		}
	}
}

// amend makes sure that the version just written has its birth: between claim and write a writer of
// another term may have put its own birth there.
func (v *Vault) amend(ctx context.Context, s *session, at string, version int, birth Birth) error {
	for range writeTries {
		meta, err := s.kv.GetMetadata(ctx, at)
		if err != nil {
			return err
		}
		b := parseBirths(meta.CustomMetadata)
		if b.of(version).covers(birth) {
			return nil
		}
		b.set(version, meta.CurrentVersion, birth)
		if err := s.kv.PutMetadata(ctx, at, v.metadata(b, namedIn(meta), nil)); err != nil {
			return err
		}
	}
	return unavailable("others wrote its metadata %d times while we tried", writeTries)
}

// lowestStanding returns the lowest version that is not destroyed, or the number after the current
// version when there is none.
func lowestStanding(meta *api.KVMetadata) int {
	lowest := meta.CurrentVersion + 1
	for _, version := range standing(meta) {
		lowest = min(lowest, version)
	}
	return lowest
}

// checkBirth refuses a birth that ParseBirth could not read back.
func checkBirth(b Birth) error {
	if b == (Birth{}) {
		return nil
	}
	if again, ok := ParseBirth(b.String()); !ok || again != b || len(b.String()) > maxBirthBytes {
		return fmt.Errorf("%w: birth %.80q", ErrInvalid, b.String())
	}
	return nil
}

// maxBirthBytes bounds a birth's text; KV allows 512.
const maxBirthBytes = 256
