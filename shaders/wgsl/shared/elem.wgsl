// What an invocation takes at a time: four numbers, or one where rows are no multiple of four numbers long.
alias Elem = vec4<f32>; //#scalar: alias Elem = f32;
const WIDE = 4u; //#scalar: const WIDE = 1u;
