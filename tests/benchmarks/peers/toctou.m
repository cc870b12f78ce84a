-- Check, then use, written by hand for Rumur: as in spec/protocols/toctou.yaml. SLOTS and READERS are put in by the
-- benchmark as numbers, or as scalarsets, by which Rumur finds out what is alike.
type
  slots: SLOTS;
  readers: READERS;
  epochs: 0 .. 3;

var
  state: array [slots] of 0 .. 3;  -- free, uncompressed, compressing, compressed
  pins: array [slots] of 0 .. 3;
  epoch: array [slots] of epochs;
  at: array [readers] of 0 .. 3;  -- match, pin, read, done
  slot: array [readers] of slots;
  seen: array [readers] of epochs;

function readable(b: slots): boolean;
begin
  return state[b] = 1 | state[b] = 3;
end;

function fit(r: readers): boolean;
begin
  return readable(slot[r]) & epoch[slot[r]] = seen[r];
end;

procedure forget(r: readers);
begin
  at[r] := 0;
  FORGET;
  seen[r] := 0;
end;

startstate begin
  for b: slots do
    state[b] := 0;
    pins[b] := 0;
    epoch[b] := 0;
  end;
  for r: readers do
    forget(r);
  end;
end;

ruleset r: readers do
  ruleset b: slots do
    rule "match" at[r] = 0 & readable(b) ==> begin
      at[r] := 1;
      slot[r] := b;
      seen[r] := epoch[b];
    end;
  end;
  rule "pin" at[r] = 1 & fit(r) ==> begin
    at[r] := 2;
    pins[slot[r]] := pins[slot[r]] + 1;
  end;
  rule "pin, refused" at[r] = 1 & !fit(r) ==> begin forget(r); end;
  rule "read" at[r] = 2 ==> begin at[r] := 3; end;
  rule "done" at[r] = 3 ==> begin
    pins[slot[r]] := pins[slot[r]] - 1;
    forget(r);
  end;
end;

ruleset b: slots do
  rule "evict" readable(b) & pins[b] = 0 ==> begin state[b] := 0; end;
  rule "take" state[b] = 0 ==> begin
    state[b] := 1;
    epoch[b] := (epoch[b] + 1) % 4;
  end;
  rule "begin" state[b] = 1 & pins[b] = 0 & forall c: slots do state[c] != 2 end ==> begin state[b] := 2; end;
  rule "end" state[b] = 2 ==> begin state[b] := 3; end;
end;

invariant "lease_holds" forall r: readers do at[r] = 3 -> fit(r) end;
